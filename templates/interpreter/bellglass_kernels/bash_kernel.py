"""The kernel of bash is bash itself, as somebody would type into it: interactive, so that an interrupt leaves whatever
runs and comes back to the next line; its lines come from the host.

A run is a line that begins it, one that evaluates the code, and one that tells its end, which is read whatever became
of the code.
"""

import re
import shlex

ARGV = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
CHANNEL_FD = 250
"""Scripts use low ones for their own."""
READY = b'set +o history +H; PS1= PS2= PROMPT_COMMAND=; printf \'{"event":"ready"}\\n\' >&250\n'
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def script(code: str, env: dict[str, str], count: int) -> bytes:
    """What is written for a run. Standard input of the code is empty."""
    names = [name for name in env if _NAME.fullmatch(name)]
    before = [f"[[ -v {name} ]] && __was_{name}=${name}; export {name}={shlex.quote(env[name])}" for name in names]
    after = [
        f"if [[ -v __was_{name} ]]; then {name}=$__was_{name}; unset __was_{name}; else unset {name}; fi"
        for name in names
    ]
    lines = [
        *before,
        f'printf \'{{"event":"started","count":{count}}}\\n\' >&{CHANNEL_FD}',
        f"eval {shlex.quote(code)} < /dev/null",
        "__status=$?",
        *after,
        f'printf \'{{"event":"end","status":%d}}\\n\' "$__status" >&{CHANNEL_FD}',
    ]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")
