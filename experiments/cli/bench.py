"""The `bench` application: its commands, and what becomes of errors.

Exit codes: 0 good, 1 a gate failed, 2 the input was wrong or results could not be written, 3 the target could not be
reached or every request failed, 130 after Ctrl-C, 141 when the reader of our output went away, 70 a fault of ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from workloads.errors import TwinserveError

BUG, INTERRUPTED, BROKEN_PIPE = 70, 130, 141
_OUTPUT_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}


class Bench(TyperGroup):
    """The command group that turns exceptions into one clear message and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line, which may print a help text to a reader that went away."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:
            _close_stdout()
            raise typer.Exit(BROKEN_PIPE) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        interrupts = _Interrupts()
        try:
            with interrupts:
                result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (typer.Exit, typer.Abort):
            raise
        except TwinserveError as error:
            _say(f"error: {error}" if "\n" not in str(error) else f"errors:\n{error}")
            # 1 says that a gate failed and nothing else, so a plug-in's fault is wrong input too.
            code = error.exit_code if error.exit_code != 1 else 2
        except KeyboardInterrupt:
            _say("interrupted")
            code = INTERRUPTED
        except BrokenPipeError:
            _close_stdout()
            code = BROKEN_PIPE
        except SystemExit as error:  # a plug-in may end itself, but not us without a word
            code = 0 if ctx.params.get("debug") else _plugin(error)
            if not code:
                raise
        except Exception as error:
            if interrupts.seen:
                _say("interrupted")
                raise typer.Exit(INTERRUPTED) from None
            if hasattr(error, "show") or ctx.params.get("debug"):  # a usage error, shown by typer; or asked for
                raise
            code = _unexpected(error)
        raise typer.Exit(code)


class _Interrupts:
    """Notices Ctrl-C even where what it stops makes another error of it, as imports of compiled code may.

    SIGTERM, which batch systems, containers and `timeout` send, is taken for Ctrl-C: what is done is kept.
    """

    seen = False

    def __enter__(self) -> None:
        self._mine = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with contextlib.suppress(ValueError):  # only the main thread may
            if self._mine:
                signal.signal(signal.SIGINT, self._note)
                if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                    signal.signal(signal.SIGTERM, self._end)

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ValueError):
            if self._mine:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                if signal.getsignal(signal.SIGTERM) == self._end:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)

    def _end(self, number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)  # whoever handles Ctrl-C at the time


def bench_app() -> typer.Typer:
    """The application, without a command yet."""
    app = typer.Typer(
        cls=Bench,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(bench)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"twinserve {version('twinserve')}")
        except PackageNotFoundError:
            typer.echo("twinserve (not installed)")
        raise typer.Exit


def bench(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of a fault of Twinserve itself."),
) -> None:
    """What will this engine configuration do under my traffic? Simulate it, measure it, compare.

    \b
    Start here:
      bench init                                  write a commented workload.yaml
      bench run workload.yaml                     run it; prints a summary, leaves a report
      bench run workload.yaml --set engine.scheduler.max_num_seqs=64 --set engine.kv.dtype=fp8
      bench sweep workload.yaml --set load.mode=closed --over load.concurrency=1,4,16,64
      bench gate workload.yaml --baseline base.json
      bench size meta-llama/Meta-Llama-3-8B --gpu h100-sxm
      bench list presets
    """


def _unexpected(error: Exception) -> int:
    if isinstance(error, OSError) and error.errno in _OUTPUT_ERRNOS:
        _say(f"error: cannot write{f' {error.filename}' if error.filename else ''}: {error.strerror}")
        _close_stdout()
        return 2
    if isinstance(error, ImportError):
        from experiments.shadows import shadowed

        if sentences := shadowed():
            _say("error: " + "; ".join(sentences))
            return 2
    if code := _plugin(error):
        return code
    _say(f"a fault of Twinserve, not of your input: {type(error).__name__}: {error}")
    _say("`bench --debug …` with the same command shows where; please report it")
    return BUG


def _plugin(error: BaseException) -> int:
    """Tell a fault of a user's own module; 0 where there is none."""
    from workloads.registry import fault_of_plugin

    fault = fault_of_plugin(error)
    if fault is None:
        return 0
    _say(f"error: {fault}")
    _say("`bench --debug …` with the same command shows the whole traceback")
    return 2


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _close_stdout() -> None:
    """Let nothing more be written, so that Python's own flush at exit is quiet too."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
