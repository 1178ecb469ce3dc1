"""A team of agents on HumanEval, as a client sees the server: the `openai` package and nothing of ours."""
