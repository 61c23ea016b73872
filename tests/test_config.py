"""Configs: loading, checking, overriding on the command line, and keeping beside a run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags
from ml_collections import config_dict

from spade_jax import config as configs
from spade_jax.program import parse_flags
from spade_jax.types import UsageError
from tests.small_run import with_field


def parse(*arguments: str) -> config_dict.ConfigDict:
    flag_values = flags.FlagValues()
    parse_flags(["program", *arguments], "default", flag_values)
    return flag_values.config


# -- loading ----------------------------------------------------------------------------------


def test_bundled_name_and_path_are_the_same_config(default: config_dict.ConfigDict) -> None:
    path = Path(__file__).parents[1] / "configs" / "default.py"
    assert configs.load(str(path)) == default
    assert default.is_locked


@pytest.mark.parametrize("name", sorted({*configs.bundled()} - {"warmstart"}))
def test_every_bundled_training_config_is_valid(name: str) -> None:
    configs.check(configs.load(name))


def test_a_program_may_have_fields_of_its_own(default: config_dict.ConfigDict) -> None:
    warmstart = configs.load("warmstart")
    configs.check_fields(warmstart, warmstart)
    with pytest.raises(configs.ConfigError, match="lacks the field data.code_characters"):
        configs.check_fields(config_dict.ConfigDict({"seed": 1}), warmstart)
    with pytest.raises(configs.ConfigError, match="unknown field data"):
        configs.check(warmstart)


VARIANTS = """
from spade_jax.configs import default

def get_config(model):
    config = default.get_config()
    config.play.plays = {"small": 2, "large": 16}[model]
    return config
"""


def test_part_after_the_colon_goes_to_get_config(tmp_path: Path) -> None:
    path = tmp_path / "variants.py"
    path.write_text(VARIANTS)
    assert configs.load(f"{path}:large").play.plays == 16
    with pytest.raises(configs.ConfigError, match=r"raised KeyError \('huge'\); mend it"):
        configs.load(f"{path}:huge")
    with pytest.raises(configs.ConfigError, match="needs a variant after a colon"):
        configs.load(str(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("defualt", r"no bundled config is called 'defualt' \(near: default\)"),
        ("absent/config.py", "config file absent/config.py does not exist"),
        ("absent/config.json", "cannot be read"),
        ("default:big", "config default takes no variant"),
        ("runs/tiny/config.json:no_memory", "a run's own and takes no words after a colon"),
    ],
)
def test_configs_that_are_not_there(name: str, message: str) -> None:
    with pytest.raises(configs.ConfigError, match=message):
        configs.load(name)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def get_config(:", "raised SyntaxError"),
        ("import absent_module_name", "raised ModuleNotFoundError"),
        ("config = 1", r"defines no get_config\(\)"),
    ],
)
def test_broken_config_files(tmp_path: Path, source: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    with pytest.raises(configs.ConfigError, match=message):
        configs.load(str(path))


# -- the command line -------------------------------------------------------------------------


def test_overrides_keep_their_types(tmp_path: Path) -> None:
    config = parse(
        "--config.play.plays=4",
        "--config.optimizer.lr",
        "1e-3",
        "--noconfig.log.tensorboard",
        "--config.skills=('Optimization', 'Logical Deduction')",
        "--config.skills_per_epoch=2",
        "--config.corpus.path=a b.jsonl",
    )
    assert (config.play.plays, config.optimizer.lr, config.log.tensorboard) == (4, 1e-3, False)
    assert config.skills == ("Optimization", "Logical Deduction")
    assert config.corpus.path == "a b.jsonl"
    assert config.is_locked


def test_words_and_overrides_on_one_line(tmp_path: Path) -> None:
    config = parse("--config=tiny:no_memory", "--config.iterations=3")
    assert (config.memory.enabled, config.iterations) == (False, 3)
    configs.save(config, tmp_path)
    again = parse(f"--config={tmp_path}/config.json", "--config.iterations=4")
    assert (again.memory.enabled, again.iterations) == (False, 4)
    configs.compare(again, tmp_path)


def test_config_is_found_anywhere_on_the_line(tmp_path: Path) -> None:
    path = tmp_path / "variants.py"
    path.write_text(VARIANTS)
    assert parse("--config.seed=1", f"--config={path}:small").play.plays == 2
    assert parse("--config", f"{path}:large", "--config.seed=1").play.plays == 16


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.play.playz=1", r"no field 'play.playz' \(near: play.plays"),
        ("--config.plays=1", r"no field 'plays' \(near: play.plays\)"),
        ("--config.play=1", "config.play is a group and cannot be set as a whole"),
        ("--config.play.plays=many", "--config.play.plays=many: invalid literal"),
        ("--config.play.plays=0", "play.plays is 0 but must be at least 1"),
        ("--config=nowhere", "no bundled config is called 'nowhere'"),
        ("--config", "--config is given no value"),
        ("--workdri=here", "Unknown command line flag 'workdri'"),
        ("here", "unexpected argument 'here'"),
    ],
)
def test_wrong_usage_is_one_sentence(argument: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        parse(argument)
    assert "\n" not in str(raised.value)


PROGRAM = '''
"""Prints what its config says."""
from absl import flags
from spade_jax.program import run_program
from spade_jax.types import UsageError

def main():
    plays = flags.FLAGS.config.play.plays
    if plays == 5:
        raise UsageError("five is right out; choose three")
    if plays == 6:
        raise RuntimeError("broken")
    if plays == 7:
        open("/absent/metrics.jsonl")
    if plays == 8:
        raise UsageError("a name with \\x1b[31m\\nin it")
    print(plays)

if __name__ == "__main__":
    run_program(main, config="default")
'''


@pytest.mark.parametrize(
    ("argument", "code", "out", "err"),
    [
        ("--config.play.plays=4", 0, r"4\n", ""),
        ("--help", 0, r"(?s)Prints what its config says.*--config:.*'default'.*", ""),
        ("--config.play.plays=5", 2, "", r"error: five is right out; choose three\n"),
        ("--config.play.plays=0", 2, "", r"error: play.plays is 0 but must be[^\n]+\n"),
        ("--nothing", 2, "", r"error: Unknown command line flag 'nothing'[^\n]+\n"),
        ("--config.play.plays=6", 1, "", r"(?s)Traceback.*RuntimeError: broken\n"),
        (
            "--config.play.plays=7",
            1,
            "",
            r"error: [^\n]*'/absent/metrics.jsonl'; make room [^\n]+\n",
        ),
        ("--config.play.plays=8", 2, "", r"error: a name with \\x1b\[31m in it\n"),
    ],
)
def test_exit_codes(tmp_path: Path, argument: str, code: int, out: str, err: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), argument], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert re.fullmatch(out, done.stdout)
    assert re.fullmatch(err, done.stderr)


# -- keeping ----------------------------------------------------------------------------------


def test_saved_config_is_found_again(default: config_dict.ConfigDict, tmp_path: Path) -> None:
    workdir = tmp_path / "deep" / "run"
    configs.compare(default, workdir)
    configs.save(default, workdir)
    configs.compare(default, workdir)
    assert configs.load(str(workdir / "config.json")) == default
    assert [path.name for path in workdir.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("iterations", 7),
        ("health.stop_after", 9),
        ("checkpoint.every", 3),
        ("evaluation.every", 0),
        ("log.episodes", -1),
        ("hint.endpoint_url", "http://elsewhere/v1"),
        ("judge.endpoint_key", "OTHER_KEY"),
    ],
)
def test_what_may_change_on_resume(
    default: config_dict.ConfigDict, tmp_path: Path, field: str, value: object
) -> None:
    configs.save(default, tmp_path)
    changed = with_field(default, field, value)
    configs.compare(changed, tmp_path)
    assert configs.fingerprint(changed) == configs.fingerprint(default)


def test_workdir_of_another_config_names_the_fields(
    default: config_dict.ConfigDict, tmp_path: Path
) -> None:
    configs.save(default, tmp_path)
    other = with_field(with_field(default, "play.plays", 4), "skills", ("Optimization",))
    with pytest.raises(configs.ConfigError) as raised:
        configs.compare(other, tmp_path)
    assert "play.plays is 8 there and 4 here" in str(raised.value)
    assert "skills is" in str(raised.value) and "seed" not in str(raised.value)
    assert configs.fingerprint(other) != configs.fingerprint(default)


def test_workdir_of_an_older_program_names_what_it_lacks(
    default: config_dict.ConfigDict, tmp_path: Path
) -> None:
    tree = default.to_dict()
    del tree["play"]["plays"]
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(configs.ConfigError, match="play.plays is absent there and 8 here"):
        configs.compare(default, tmp_path)


def test_broken_saved_config(default: config_dict.ConfigDict, tmp_path: Path) -> None:
    for broken in ("{", "[" * 100_000):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(configs.ConfigError, match=r"config.json is no valid JSON"):
            configs.compare(default, tmp_path)


def test_unwritable_workdir(default: config_dict.ConfigDict, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(configs.ConfigError, match="cannot be written .*; choose another --workdir"):
        configs.save(default, tmp_path / "file" / "run")
