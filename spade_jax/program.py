"""How every program starts and ends: flags, a config where it takes one, one sentence per mistake.

Exit codes: 0 done, 1 the work failed, 2 wrong usage, 70 a stage hung (HUNG), 75 ended by SIGTERM
(RESTART: the same command goes on, and launchers give it), 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_dict, config_flags
from rich.console import Console
from rich.text import Text

from spade_jax import config as configs
from spade_jax import tpu
from spade_jax.types import UsageError

# Exit codes, named after EX_SOFTWARE and EX_TEMPFAIL of sysexits.h.
HUNG = 70
RESTART = 75

Check = Callable[[config_dict.ConfigDict], None]
_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]+)")


def run_program(
    main: Callable[..., int | None] | str,
    *,
    config: str | None = None,
    check: Check | None = configs.check,
    files: bool = False,
) -> NoReturn:
    """Parse the command line, run `main` and exit with what it returns.

    A module's name in place of `main` stands for its `main`, and is imported when the command line
    is parsed: so --help and mistakes need no JAX, which takes seconds to load.
    With `files`, arguments that are no flags are names of files: `main` is given their list. With
    `config`, the program takes `--config=NAME_OR_PATH` (that name by default) and
    `--config.group.field=VALUE`; `main` finds the config, which `check` has passed, in
    `flags.FLAGS.config`; None leaves the check to it. A UsageError, here or in `main`, is printed
    as one line and exits with 2.
    """

    def parse(argv: Sequence[str]) -> list[str]:
        try:
            return parse_flags(argv, config, flags.FLAGS, check, files)
        except UsageError as error:
            _exit_with_usage(error)
        except SystemExit:  # --help and its like exit with 1, though nothing failed
            sys.exit(0)

    def run(argv: Sequence[str]) -> int | None:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)  # orbax and jax are talkative otherwise
        tpu.set_options()
        try:
            work = importlib.import_module(main).main if isinstance(main, str) else main
            return work(list(argv[1:])) if files else work()
        except UsageError as error:
            _exit_with_usage(error)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:  # nobody reads on; what is not yet written shall not fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 1
        except OSError as error:  # of the disk, as a rule; those of checkpoints say what to do
            remedy = "; make room or access there and give the same command again"
            print(f"error: {_one_line(error)}{remedy if error.errno else ''}", file=sys.stderr)
            return 1

    app.run(run, flags_parser=parse)
    raise AssertionError("app.run exits")


def parse_flags(
    argv: Sequence[str],
    config: str | None,
    flag_values: flags.FlagValues,
    check: Check | None = configs.check,
    files: bool = False,
) -> list[str]:
    """Parse `argv` (program name first) into `flag_values`, its `config` checked; the rest.

    Only with `files` may anything but the program's name be left, wherever it stands among the
    flags. Every mistake is a UsageError of one sentence.
    """
    flag_values.set_gnu_getopt(files)
    arguments = list(argv)
    if config is not None:
        name, arguments = _take_config(arguments, config)
        _define_config(name, arguments, flag_values)
    try:
        rest = flag_values(arguments)
    except flags.Error as error:
        sentence = " ".join(str(error).split())
        raise UsageError(f"{sentence} (--help lists the flags)") from None
    if len(rest) > 1 and not files:
        raise UsageError(
            f"unexpected argument {rest[1]!r}; pass --flag=value (--help lists the flags)"
        )
    if config is not None and check is not None:
        check(flag_values.config)
    return rest


def config_name() -> str:
    """What --config was given, or the program's default."""
    return ast.literal_eval(flags.FLAGS["config"].default_as_str)


def printable(text: str) -> str:
    """The text with every character that could steer a terminal written as an escape."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def warn(text: str) -> None:
    """Print a line where errors go, in red on a terminal."""
    Console(stderr=True, soft_wrap=True).print(Text(text, style="red"))


def _take_config(argv: list[str], default: str) -> tuple[str, list[str]]:
    """The last value of --config, and the arguments without it."""
    name, rest = default, argv[:1]
    arguments = iter(argv[1:])
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag not in ("-config", "--config"):
            rest.append(argument)
            continue
        name = value if equals else next(arguments, "")
        if not name:
            raise UsageError("--config is given no value; pass --config=NAME_OR_PATH")
    return name, rest


def _define_config(name: str, argv: list[str], flag_values: flags.FlagValues) -> None:
    """Define the flag `config` and one flag for each overridden field."""
    config = configs.load(name)
    for argument in argv[1:]:
        override = _OVERRIDE.match(argument)
        if override:
            configs.check_field(config, override.group(1))
    config_flags.DEFINE_config_dict(
        "config",
        config,
        "Bundled name (tiny, games:qwen3_4b) or path of a config; its fields are set by "
        "--config.group.field=VALUE.",
        flag_values=flag_values,
        sys_argv=argv,
    )
    flag_values["config"].default_as_str = repr(name)
    flag_values.register_key_flag_for_module(sys.argv[0], flag_values["config"])


def _one_line(error: Exception) -> str:
    """What it says; names and texts of others may be in it."""
    return printable(" ".join(str(error).splitlines()))


def _exit_with_usage(error: UsageError) -> NoReturn:
    print(f"error: {_one_line(error)}", file=sys.stderr)
    sys.exit(2)
