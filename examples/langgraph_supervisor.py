"""LangGraph: a supervisor hands the shared conversation to its workers until each has spoken."""

from __future__ import annotations

import os
import sys
from typing import Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel, SecretStr

model = ChatOpenAI(
    model="smollm2-135m-instruct",
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=SecretStr(os.environ.get("OPENAI_API_KEY", "none")),
    max_completion_tokens=48,
    temperature=0.0,
    # Identity in one line, with a model object a node:
    # default_headers={"x-session-id": task_id, "x-claude-code-agent-id": "supervisor"},
)

SUPERVISOR = "You are the supervisor of a field study. Read the conversation and choose who works next."
WORKERS = {
    "surveyor": "You are the surveyor of a field study. Say what to measure, where and how often.",
    "analyst": "You are the analyst of a field study. Say what the measurements mean and how sure you are.",
}


class Route(BaseModel):
    """Who works next."""

    worker: Literal["surveyor", "analyst"]


class State(MessagesState):
    waiting: list[str]


def supervise(state: State) -> Command[str]:
    """The model's choice, kept to workers that haven't spoken: a small model would go in circles."""
    router = model.with_structured_output(Route, method="function_calling", include_raw=True)
    answer = router.invoke([SystemMessage(SUPERVISOR), *state["messages"]])
    route = answer["parsed"]
    if not state["waiting"]:
        return Command(goto=END)
    chosen = route.worker if route and route.worker in state["waiting"] else state["waiting"][0]
    return Command(goto=chosen, update={"waiting": [name for name in state["waiting"] if name != chosen]})


def worker(name: str) -> object:
    def work(state: State) -> dict[str, list[AnyMessage]]:
        answer = model.invoke([SystemMessage(WORKERS[name]), *state["messages"]])
        return {"messages": [AIMessage(answer.text, name=name)]}

    return work


def build() -> StateGraph:
    graph = StateGraph(State)
    graph.add_node("supervisor", supervise, destinations=(*WORKERS, END))
    graph.add_edge(START, "supervisor")
    for name in WORKERS:
        graph.add_node(name, worker(name))
        graph.add_edge(name, "supervisor")
    return graph


def main(task: str) -> None:
    state = {"messages": [HumanMessage(task)], "waiting": list(WORKERS)}
    for message in build().compile().invoke(state)["messages"][1:]:
        print(f"{message.name}: {message.text!r}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "How fast does the dune in front of the village move?")
