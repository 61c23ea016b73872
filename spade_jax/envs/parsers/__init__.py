"""Reading a model's reply: programs, boxed answers, tool calls, answers.

The sandbox's child uses this package as well as the trainer, so it imports the standard library
only, and all of it at once. Thinking is never read. Every function takes time linear in the reply
and raises nothing but `ToolCallError` (and `SyntaxError`, where it says so).
"""

from spade_jax.envs.parsers.boxes import boxed
from spade_jax.envs.parsers.calls import ToolCall, ToolCallError
from spade_jax.envs.parsers.programs import ANY_PROGRAM, extract_code, extract_hint
from spade_jax.envs.parsers.replies import answer, parse_action, spoken, tool_calls
from spade_jax.envs.parsers.syntax import parse_program

__all__ = [
    "ANY_PROGRAM",
    "ToolCall",
    "ToolCallError",
    "answer",
    "boxed",
    "extract_code",
    "extract_hint",
    "parse_action",
    "parse_program",
    "spoken",
    "tool_calls",
]
