"""`run` and `exec` end in a command with options of its own: ours stop at its first word, with `--` or without.

Otherwise `bellglass run python3 -c ...` would take the `-c` for itself.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperOption


class EndsInCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        params = self.get_params(ctx)
        before = sum(isinstance(param, TyperArgument) and param.nargs == 1 for param in params)
        options = [param for param in params if isinstance(param, TyperOption) and not param.is_flag]
        valued = {name for option in options for name in option.opts}
        return super().parse_args(ctx, end_options(args, before=before, valued=valued))


def end_options(words: list[str], *, before: int, valued: set[str]) -> list[str]:
    """`words` with a `--` in front of the command, which comes after `before` words that are no options."""
    at = 0
    while at < len(words) and words[at] != "--":
        word = words[at]
        if not word.startswith("-") or word == "-":
            if before == 0:
                return [*words[:at], "--", *words[at:]]
            before -= 1
        elif word.startswith("--"):
            at += word in valued
        else:  # flags may be together, and a value may hang on: -ie NAME, -iuroot
            short = next((i for i, letter in enumerate(word) if f"-{letter}" in valued), None)
            at += short == len(word) - 1
        at += 1
    return words
