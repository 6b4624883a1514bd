"""The same agent, streamed."""

from tests.integrations.openai_agents import program

HAPPENED, build, people = program.HAPPENED, program.build, program.people
program.STREAMED = True
