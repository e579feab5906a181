"""Builds a recipe into a template folder with mmdebstrap, as root.

The work happens in a hidden folder beside the result and ends with one rename, under a lock for the whole templates
folder: two builds at once make one template, and what a killed build left is removed by the next. mmdebstrap runs in
its own mount and PID namespaces, so killing it leaves neither mounts nor processes behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bellglass.errors import InternalError, InvalidRequest, NotSupported
from bellglass.node.image import apt_sources, template
from bellglass.node.image.recipe import Defaults, Recipe
from bellglass.node.image.template import BuiltTemplate

Progress = Callable[[str], None]

BUILD_TIMEOUT_S = 1800
_WORK_PREFIX = ".build-"
_DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_CARRIED_ENV = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
_CA_FOLDER = "usr/local/share/ca-certificates"
_CA_FILE = "etc/ssl/certs/bellglass-operator.pem"
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
CA_ENV = {
    "SSL_CERT_FILE": _BUNDLE,
    "REQUESTS_CA_BUNDLE": _BUNDLE,
    "PIP_CERT": _BUNDLE,
    "NODE_EXTRA_CA_CERTS": f"/{_CA_FILE}",
}
"""For those who bring certificates of their own instead of reading the system's: Pythons that are not Debian's,
certifi, pip in a venv, Node."""
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def mmdebstrap_argv(
    recipe: Recipe, target: Path, *, sources: Path | None, options: Path | None, extra_ca: Sequence[Path] = ()
) -> list[str]:
    """The command that fills `target`, which does not exist yet.

    `sources`: a sources.list, or None for mmdebstrap's defaults; `options`: an apt.conf, which
    `build` takes out of the result again; `extra_ca`: files of one certificate each.
    """
    argv = ["mmdebstrap", "--mode=root", "--format=directory", f"--variant={recipe.variant}"]
    if recipe.packages:
        argv.append(f"--include={','.join(recipe.packages)}")
    if _DEBIAN_KEYRING.exists():
        argv.append(f"--keyring={_DEBIAN_KEYRING}")
    if options:
        argv.append(f"--aptopt={options}")
    if extra_ca:
        files = shlex.join(str(path) for path in extra_ca)
        argv.append(f'--customize-hook=install -m 0644 {files} "$1"/{_CA_FOLDER} && cat {files} > "$1"/{_CA_FILE}')
        argv.append('--customize-hook=chroot "$1" update-ca-certificates')
    # Through sh, because a package installed from a wheel may have lost the executable bit.
    argv += [f'--customize-hook=sh {shlex.quote(str(hook))} "$1"' for hook in recipe.hook_paths()]
    argv += [recipe.suite, str(target)]
    if sources:
        argv.append(str(sources))
    return argv


def build(
    recipe: Recipe,
    templates_dir: Path,
    *,
    progress: Progress,
    extra_ca: Path | None = None,
    timeout_s: float = BUILD_TIMEOUT_S,
) -> BuiltTemplate:
    """The template of that recipe, built unless it is there already.

    Raises NotSupported (not root, or mmdebstrap is missing), InvalidRequest (`extra_ca` can't be read) and
    InternalError with mmdebstrap's last lines and its command; then nothing of the build is left.
    """
    certificates = read_ca(extra_ca)
    digest = recipe.digest(extra_ca=b"".join(certificates))
    final = templates_dir / template.folder_name(recipe.name, digest)
    if (final / template.META).exists():
        return template.read(final)
    if os.geteuid() != 0:
        raise NotSupported("building a template needs root", hint="run: sudo make template")
    if shutil.which("mmdebstrap") is None:
        raise NotSupported("mmdebstrap is not installed", hint="run: apt-get install mmdebstrap")

    def make(rootfs: Path) -> None:
        _bootstrap(recipe, rootfs, certificates, progress=progress, timeout_s=timeout_s)
        progress("measuring and storing")
        _finish(rootfs)

    return place(recipe, digest, templates_dir, make, progress=progress, env=CA_ENV if certificates else {})


def place(
    recipe: Defaults,
    digest: str,
    templates_dir: Path,
    make: Callable[[Path], None],
    *,
    progress: Progress,
    env: Mapping[str, str],
) -> BuiltTemplate:
    """The template of that digest, unless it is there already with the root file system that `make` fills: it gets the
    path of a folder that does not exist yet. Under the lock of `templates_dir`; if `make` raises nothing is left.

    `env`: defaults of the template besides the recipe's own.
    """
    final = templates_dir / template.folder_name(recipe.name, digest)
    templates_dir.mkdir(parents=True, exist_ok=True)
    with _locked(templates_dir, progress):
        if (final / template.META).exists():
            return template.read(final)
        for left in templates_dir.glob(f"{_WORK_PREFIX}*"):
            progress(f"removing {left.name}, left by an interrupted build")
            _remove(left)
        with ExitStack() as undo:
            work = Path(tempfile.mkdtemp(prefix=f"{_WORK_PREFIX}{recipe.name}-", dir=templates_dir))
            undo.callback(_remove, work)
            work.chmod(0o755)
            make(work / "rootfs")
            built = _describe(recipe, digest, work / "rootfs", final, {**env, **recipe.env})
            (work / template.META).write_text(json.dumps(built.to_json(), indent=2) + "\n", "utf-8")
            os.sync()  # a rename that survives a power cut must not name files that did not
            _remove(final)
            work.rename(final)
            undo.pop_all()
        return built


def _bootstrap(
    recipe: Recipe, rootfs: Path, certificates: Sequence[bytes], *, progress: Progress, timeout_s: float
) -> None:
    # Outside the templates folder and 0700: the host's sources and options can hold credentials.
    with tempfile.TemporaryDirectory(prefix="bellglass-template-") as private:
        sources = _written(Path(private) / "sources.list", apt_sources.host_sources(recipe.suite))
        options = _written(Path(private) / "apt.conf", apt_sources.host_options())
        # One a file: the folder of hashed names, which OpenSSL reads, takes no more of each.
        extra_ca = [Path(private) / f"bellglass-operator-{number}.crt" for number in range(len(certificates))]
        for path, certificate in zip(extra_ca, certificates, strict=True):
            path.write_bytes(certificate)
        argv = mmdebstrap_argv(recipe, rootfs, sources=sources, options=options, extra_ca=extra_ca)
        progress(f"Debian {recipe.suite} with {len(recipe.packages)} packages")
        _run(argv, progress=progress, timeout_s=timeout_s)


def _run(argv: list[str], *, progress: Progress, timeout_s: float) -> None:
    # This process killed, setpriv's signal ends unshare, and unshare its PID namespace.
    isolated = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
    isolated += ["--mount-proc", "--", *argv]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}
    environment |= {name: os.environ[name] for name in _CARRIED_ENV if name in os.environ}
    tail: deque[str] = deque(maxlen=30)
    deadline = time.monotonic() + timeout_s
    with subprocess.Popen(
        isolated,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        # The pipe gives EOF once the namespace is dead, so the timer alone bounds the loop below.
        timer = threading.Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
        timer.daemon = True
        timer.start()
        try:
            for line in process.stdout:
                tail.append(line.rstrip())
                if phase := _phase(line):
                    progress(phase)
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if code == 0:
        return
    late = time.monotonic() >= deadline
    cause = f"took longer than {timeout_s:.0f} s" if late else f"ended with {code}"
    raise InternalError(
        f"mmdebstrap {cause}:\n" + "\n".join(tail),
        hint=f"the command was: {shlex.join(argv)}",
        details={"exit_code": code},
    )


def _phase(line: str) -> str | None:
    """What of mmdebstrap's output is worth a line: its own phases, and hooks by their name alone."""
    if not line.startswith("I: ") or "success" in line:
        return None
    if hook := re.search(r"--customize-hook.*?([\w.-]+\.sh|update-ca-certificates|install)\b", line):
        return f"hook {hook[1]}"
    return line[3:].strip().removesuffix("...")


def _finish(rootfs: Path) -> None:
    apt = rootfs / "etc/apt"
    # How the build host reaches its mirrors (proxy, certificates, where its passwords lie) ends here.
    _remove(apt / "apt.conf.d/99mmdebstrap")
    for sources in (*apt.glob("sources.list"), *apt.glob("sources.list.d/*")):
        sources.write_text(apt_sources.without_credentials(sources.read_text("utf-8")), "utf-8")
    # The runtime mounts its own /dev; device nodes in a layer are only something to escape through.
    for entry in (rootfs / "dev").iterdir():
        _remove(entry)


def _describe(recipe: Defaults, digest: str, rootfs: Path, final: Path, env: Mapping[str, str]) -> BuiltTemplate:
    size_bytes = files = 0
    seen: set[int] = set()
    for folder, folders, names in os.walk(rootfs):
        for name in folders + names:
            status = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - pathlib doubles the time of 15,000 files
            files += 1
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                size_bytes += status.st_blocks * 512
    return BuiltTemplate(
        name=recipe.name,
        digest=digest,
        version=recipe.version,
        size_bytes=size_bytes,
        files=files,
        built_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        env=dict(env),
        user=recipe.user,
        workdir=recipe.workdir,
        folder=final,
    )


@contextmanager
def _locked(templates_dir: Path, progress: Progress) -> Iterator[None]:
    # The lock file stays: removing it would let two builders hold locks on two different files.
    with (templates_dir / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another build in the same folder")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_ca(path: Path | None) -> list[bytes]:
    """The certificates of a PEM file, a line end behind each. Raises InvalidRequest."""
    if path is None:
        return []
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"extra_ca {path}: {error.strerror}", details={"field": "extra_ca"}) from error
    certificates = [pem.replace(b"\r\n", b"\n") + b"\n" for pem in _PEM.findall(data)]
    if not certificates:
        raise InvalidRequest(f"extra_ca {path} holds no PEM certificate", details={"field": "extra_ca"})
    return certificates


def _written(path: Path, lines: tuple[str, ...]) -> Path | None:
    if not lines:
        return None
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _remove(path: Path) -> None:
    """Removes a file or tree; gone already is success."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
