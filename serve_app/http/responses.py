"""An error as the response that a client gets."""

from starlette.responses import JSONResponse

from serve_app.http.errors import ApiError

ANTHROPIC_PATHS = "/v1/messages"


def respond(error: ApiError, headers: dict[str, str] | None = None, path: str = "") -> JSONResponse:
    """In OpenAI's shape; under the paths of Anthropic's API with the `type` that its own has beside it."""
    body = {"type": "error", **error.body()} if path.startswith(ANTHROPIC_PATHS) else error.body()
    return JSONResponse(body, status_code=error.status, headers={**error.headers, **(headers or {})})
