"""CrewAI: a crew of three, one task each, each task built on the ones before."""

from __future__ import annotations

import os
import sys

# Before the import: CrewAI reports to its makers otherwise.
os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")

from crewai import LLM, Agent, Crew, Process, Task

ROLES = {
    "gardener": ("Choose the plants.", "You have kept the school garden for years."),
    "carpenter": ("Design the beds.", "You build with what the workshop has left."),
    "treasurer": ("Estimate the cost.", "You turn every coin twice."),
}


def llm() -> LLM:
    return LLM(
        model="openai/smollm2-135m-instruct",
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        max_tokens=48,
        # CrewAI takes an empty answer for a failure, and a small model that draws its words gives one now and then.
        temperature=0.0,
        # Identity in one line, with an LLM an agent:
        # default_headers={"x-session-id": task_id, "x-claude-code-agent-id": "gardener"},
    )


def main(project: str) -> None:
    model = llm()
    tasks: list[Task] = []
    for role, (goal, backstory) in ROLES.items():
        agent = Agent(role=role, goal=goal, backstory=backstory, llm=model, max_iter=1, verbose=False)
        tasks.append(
            Task(description=f"{project} {goal}", expected_output="Two sentences.", agent=agent, context=list(tasks))
        )
    crew = Crew(agents=[task.agent for task in tasks], tasks=tasks, process=Process.sequential, verbose=False)
    for task in crew.kickoff().tasks_output:
        print(f"{task.agent}: {task.raw!r}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "The school garden gets a new corner.")
