"""An error as the response that a client gets."""

from starlette.responses import JSONResponse

from serve_app.http.errors import ApiError


def respond(error: ApiError, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(error.body(), status_code=error.status, headers={**error.headers, **(headers or {})})
