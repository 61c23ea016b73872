"""Programs that misbehave, and what each must come to: the table of the sandbox's conformance.

What must be refused is in `refusals` (by Python's own means) and in `system_calls`.
"""

from __future__ import annotations

import dataclasses
import enum

from spade_jax.envs.confine import Tier
from tests.envs.programs import game

ATTACK = "attack"  # the action on which a program strikes, where it must outlive that


class Outcome(enum.StrEnum):
    """What the host must see; all but the last two end the instance."""

    TIMEOUT = "timeout"
    MEMORY = "memory"
    ERROR = "error"
    CONTRACT = "contract"
    CRASH = "crash"
    PROTOCOL = "protocol"
    DENIED = "denied"  # an ordinary error inside the program, which goes on
    OK = "ok"


@dataclasses.dataclass(frozen=True)
class World:
    """Things of the host that attacks aim at."""

    folder: str  # holds what `FILES` lists
    source: str  # a file of this project
    name: str  # unique, for files that an attack tries to make elsewhere
    host: int  # process id
    tcp: int  # port of a listener on loopback
    unix: str  # path of a listening socket
    abstract: str  # name of a listening abstract socket


@dataclasses.dataclass(frozen=True)
class Attack:
    """One case. `text` is put in at `where`; that of a DENIED one is the body of a function.

    `told` must stand in the failure's message or in the observation. A DENIED one must raise an
    OSError or what `raises` names; in the tiers `free` its claim is not made and it succeeds.
    `works` says who succeeds with it where nothing is confined: "anyone", "root", or "" (it cannot
    be tried there).
    """

    name: str
    outcome: Outcome
    text: str
    where: str = "step"
    told: str = ""
    raises: tuple[str, ...] = ()
    free: tuple[Tier, ...] = ()
    works: str = ""


# Packages are imported before a program is confined; so no attack fails for want of its tools.
MODULES = (
    *("asyncio", "concurrent.futures.process", "concurrent.futures.thread", "ctypes", "fcntl"),
    *("glob", "inspect", "logging", "mmap", "multiprocessing.pool", "multiprocessing.popen_fork"),
    *("multiprocessing.queues", "multiprocessing.shared_memory", "multiprocessing.synchronize"),
    *("numpy", "pathlib", "pdb", "pty", "pwd", "py_compile", "resource", "runpy", "select"),
    *("shutil", "signal", "socket", "subprocess", "tempfile", "threading", "urllib.request"),
)

_TOOLS = """
import ctypes, gc, json, os, re, signal, socket, struct, sys, time
from spade_jax.envs import contract, wire

{world}
FILE = FOLDER + "/canary"
libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def raw(number, *arguments):
    longs = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return check(libc.syscall(ctypes.c_long(number), *longs))

def some(found):
    if not found:
        raise PermissionError("nothing of the host was found")
    return found

def forged(reply, sequence=2):
    return wire.frame(sequence, wire.encode(reply))
"""

_REFUSED = """
if action == "attack":
    try:
        observation = f"done: {attack()!r}"[:900]
    except BaseException as error:
        kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
        observation = f"denied: {kinds}: {error}"[:900]
"""


def program(attack: Attack, world: World) -> str:
    """The source of an attack's environment."""
    if attack.where == "source":
        return attack.text
    fields = dataclasses.asdict(world).items()
    top = _TOOLS.format(world="\n".join(f"{name.upper()} = {value!r}" for name, value in fields))
    if attack.outcome is Outcome.DENIED:
        body = attack.text.replace("\n", "\n    ")
        return game(top=f"{top}\ndef attack():\n    {body}\n", step=_REFUSED.strip())
    if attack.where == "top":
        return game(top=f"{top}\n{attack.text}\n")
    return game(top=top, **{attack.where: attack.text})


def _spin(name: str, text: str, where: str = "step") -> Attack:
    return Attack(name, Outcome.TIMEOUT, text, where)


TIMEOUTS = (
    _spin("endless loop at import", "while True: pass", "top"),
    _spin("endless loop in the constructor", "while True: pass", "init"),
    _spin("endless loop in reset", "while True: pass", "reset"),
    _spin("endless loop in step", "while True: pass"),
    _spin("a long wait", "time.sleep(1e6)"),
    _spin("a wait for a signal", "signal.pause()"),
    _spin("a wait for an answer", "os.read(3, 1)"),
    _spin("a regular expression", "re.match('(a+)+b', 'a' * 60)"),
    _spin("a huge power", "9 ** 9 ** 9 % 7"),
    _spin("a loop in native code", "import itertools; sum(itertools.count())"),
    _spin(
        "ignoring every signal",
        "for number in range(1, 65):\n"
        "    try:\n"
        "        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n"
        "        pass\n"
        "while True: pass",
    ),
    _spin(
        "swallowing every exception",
        "while True:\n    try:\n        1 / 0\n    except BaseException:\n        pass",
    ),
    _spin(
        "swallowing memory errors",
        "while True:\n    try:\n        bytes(1 << 40)\n    except MemoryError:\n        pass",
    ),
    _spin(
        "an exception whose text takes forever",
        "class Slow(Exception):\n    def __str__(self):\n        while True: pass\nraise Slow()",
    ),
    _spin("half a frame, then silence", "os.write(3, b'\\0\\0')\nwhile True: pass"),
    _spin(
        "a fault handled again and again",
        "signal.signal(signal.SIGSEGV, lambda *_: None)\nctypes.string_at(0)",
    ),
    _spin(
        "a wait on a lock that is held",
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    ),
    _spin(
        "an observation that is never made",
        "class Slow(str):\n    def strip(self):\n        while True: pass\nobservation = Slow('x')",
    ),
)


def _memory(name: str, text: str) -> Attack:
    return Attack(name, Outcome.MEMORY, text, told="memory")


MEMORY = (
    _memory("a growing list", "kept = []\nwhile True: kept.append(bytes(1 << 20))"),
    _memory("a growing dictionary", "kept = {}\nwhile True: kept[len(kept)] = str(len(kept)) * 99"),
    _memory("one huge bytes", "bytes(1 << 30)"),
    _memory("one huge list", "[None] * (1 << 30)"),
    _memory("a huge array", "import numpy; numpy.ones(1 << 28)"),
    _memory("a huge observation", "observation = 'x' * (1 << 30)"),
    _memory("a huge shift", "1 << (1 << 33)"),
    _memory("a huge format", "f'{1:>1000000000}'"),
    _memory(
        "a huge map of memory",
        "import mmap\ntry:\n    mmap.mmap(-1, 1 << 34)\nexcept OSError:\n    raise MemoryError",
    ),
    _memory("a memory error of its own", "raise MemoryError('x' * 10**6)"),
)


def _error(name: str, told: str, text: str, where: str = "step") -> Attack:
    return Attack(name, Outcome.ERROR, text, where, told)


ERRORS = (
    _error("an error", "ZeroDivisionError: division by zero (line ", "1 / 0"),
    _error("an error at import", "NameError", "nothing_of_this_name", "top"),
    _error("an error in the constructor", "KeyError", "{}['x']", "init"),
    _error("an error in reset", "AssertionError", "assert False", "reset"),
    _error("sys.exit", "SystemExit: 0 (line ", "sys.exit(0)"),
    _error("sys.exit at import", "SystemExit", "sys.exit(0)", "top"),
    _error("KeyboardInterrupt", "KeyboardInterrupt: stop", "raise KeyboardInterrupt('stop')"),
    _error("GeneratorExit", "GeneratorExit", "raise GeneratorExit"),
    _error("StopIteration", "StopIteration", "next(iter(()))"),
    _error("deep recursion", "RecursionError", "f = lambda: f(); f()"),
    _error("deep nesting in the source", "SyntaxError", "x = " + "(" * 500 + ")" * 500, "source"),
    _error("a syntax error", "SyntaxError", "x = 1\nclass AEnv:\n    def (\n", "source"),
    _error("a NUL in the source", "null bytes", "x = 1\0", "source"),
    _error("a group of errors", "ExceptionGroup", "raise ExceptionGroup('x', [ValueError()] * 9)"),
    _error(
        "a recursive text",
        "its text cannot be printed",
        "class Own(Exception):\n    def __str__(self): return str(self)\nraise Own()",
    ),
    _error(
        "an exit handler",
        "SystemExit",
        "import atexit\natexit.register(os.write, 3, b'x')\nsys.exit(3)",
    ),
    _error("a huge message", "ValueError: xxx", "raise ValueError('x' * 10**6)"),
    _error("an unprintable message", "ValueError: ?", "raise ValueError('\\ud800')"),
    _error(
        "a text that fails",
        "its text cannot be printed",
        "class Own(Exception):\n    def __str__(self): return 1 / 0\nraise Own()",
    ),
    _error(
        "a text that is no text",
        "its text cannot be printed",
        "class Own(Exception):\n    def __str__(self): return 5\nraise Own()",
    ),
    _error("a huge name", "xxxx", "raise type('x' * 10**6, (Exception,), {})('y')"),
    _error(
        "an error that lies about its class",
        "Own",
        "class Own(Exception):\n    __class__ = property(lambda self: int)\nraise Own()",
    ),
    _error("an error that is no exception", "TypeError", "raise 5"),
    _error(
        "an alarm that raises",
        "TimeoutError",
        "def ring(*_): raise TimeoutError\nsignal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\nwhile True: pass",
    ),
    _error(
        "a tuple whose length fails",
        "ZeroDivisionError",
        "class Odd(tuple):\n    def __len__(self): return 1 // 0\n"
        "return Odd((observation, reward, False, False, {}))",
    ),
    _error(
        "a forged failure",
        "forged",
        "os.write(3, forged(wire.Failed('step', 'error', 'forged' * 10**5)))\nwhile True: pass",
    ),
    _error("waiting for input", "EOFError", "input()"),
    _error("the debugger", "BdbQuit", "breakpoint()"),
)


def _contract(name: str, text: str, told: str = "", where: str = "step") -> Attack:
    return Attack(name, Outcome.CONTRACT, text, where, told)


CONTRACTS = (
    _contract("no class", "x = 1", "ends in Env", "source"),
    _contract(
        "no step",
        "class AEnv:\n    def reset(self, seed=None):\n        return 'go', {}\n",
        "no method step",
        "source",
    ),
    _contract("a class of another module", "from decimal import Decimal as AEnv", "", "source"),
    _contract("reset without an observation", "return None, {}", "text", "reset"),
    _contract("reset with a long observation", "return 'x' * 1001, {}", "too long", "reset"),
    _contract("reset with an empty observation", "return '', {}", "empty", "reset"),
    _contract("reset with a dictionary", "return {}", "tuple of 2", "reset"),
    _contract("no observation", "observation = None", "text"),
    _contract("an observation of bytes", "observation = b'x'", "text"),
    _contract("a blank observation", "observation = ' \\n'", "empty"),
    _contract("a long observation", "observation = 'x' * 1001", "too long: 1001"),
    _contract("reward NaN", "reward = float('nan')", "finite"),
    _contract("reward infinite", "reward = float('-inf')", "finite"),
    _contract("reward too high", "reward = 1e300", "between -10 and 10"),
    _contract("reward too low", "reward = -10.5", "between -10 and 10"),
    _contract("reward a huge integer", "reward = 10**400", "between -10 and 10"),
    _contract("reward a text", "reward = '1'", "number"),
    _contract("reward missing", "reward = None", "number"),
    _contract("reward complex", "reward = 1j", "number"),
    _contract("reward an array", "import numpy; reward = numpy.ones(2)", "number"),
    _contract("a tuple of four", "return observation, 1.0, True, {}", "a tuple of 4"),
    _contract("a list", "return [observation, reward, False, False, {}]", "tuple of 5"),
    _contract("nothing", "return None", "tuple of 5"),
    _contract("a generator", "yield", "generator"),
    _contract("a coroutine", "async def wait(): pass\nreturn wait()", "coroutine"),
    _contract("an odd terminated", "return observation, reward, 'no', False, {}", "True or False"),
    _contract(
        "a hostile terminated",
        "class Odd:\n    def __bool__(self): return 1 // 0\n"
        "return observation, reward, Odd(), False, {}",
        "True or False",
    ),
    _contract("an error of the contract", "raise contract.ContractError('forged')", "forged"),
)


def _crash(name: str, text: str, told: str = "") -> Attack:
    return Attack(name, Outcome.CRASH, text, told=told)


CRASHES = (
    _crash("exit with success", "os._exit(0)", "status 0"),
    _crash("exit with an error", "os._exit(3)", "status 3"),
    _crash("half a frame, then exit", "os.write(3, b'\\0\\0')\nos._exit(0)"),
    _crash("abort", "os.abort()"),
    _crash("a segmentation fault", "ctypes.string_at(0)", "signal 11"),
    _crash(
        "a stack overflow",
        "sys.setrecursionlimit(10**9)\nx = ()\nfor _ in range(10**6): x = (x,)\nhash(x)",
        "signal 11",
    ),
    _crash("an alarm that is not handled", "signal.alarm(1)\nwhile True: pass", "signal 14"),
    _crash("closing the channel", "os.close(3)"),
    _crash("closing everything", "os.closerange(0, 64)"),
    _crash("a call by the x32 interface", "libc.syscall(ctypes.c_long(0x40000000 | 39))"),
)


def _forgery(name: str, text: str) -> Attack:
    return Attack(name, Outcome.PROTOCOL, text)


PROTOCOLS = (
    _forgery("garbage", "os.write(3, b'garbage' * 100)"),
    _forgery("an absurd length", "os.write(3, b'\\xff\\xff\\xff\\xff\\0\\0\\0\\2')"),
    _forgery("a frame that is no message", "os.write(3, wire.frame(2, b'\\xc1'))"),
    _forgery("an empty frame", "os.write(3, wire.frame(2, b''))"),
    _forgery("deep nesting", "os.write(3, wire.frame(2, b'\\x91' * 10**5))"),
    _forgery("an answer of another kind", "os.write(3, forged(wire.Loaded()))"),
    _forgery("a wrong number", "os.write(3, forged(wire.Observed('x', 1.0, True, False), 1))"),
    _forgery("a reward NaN", "os.write(3, forged(wire.Observed('x', 1e999 * 0, True, False)))"),
    _forgery("a reward too high", "os.write(3, forged(wire.Observed('x', 11.0, True, False)))"),
    _forgery("a reward of text", "os.write(3, forged(wire.Observed('x', '1', True, False)))"),
    _forgery("a long text", "os.write(3, forged(wire.Observed('x' * 1001, 1.0, True, False)))"),
    _forgery("no text", "os.write(3, forged(wire.Observed('', 1.0, True, False)))"),
    _forgery("two answers", "os.write(3, 2 * forged(wire.Observed('x', 1.0, True, False)))"),
    _forgery("a flood", "while True: os.write(3, bytes(1 << 16))"),
    _forgery(
        "a text that lies about its length",
        "class Short(str):\n    def __len__(self): return 1\nobservation = Short('x' * 9999)",
    ),
    _forgery(
        "a contract made lax",
        "contract.check_reward = lambda _: True\nreturn observation, 99.0, True, False, {}",
    ),
)


def _fine(name: str, text: str, told: str = "got attack") -> Attack:
    return Attack(name, Outcome.OK, text, told=told)


FINE = (
    _fine("printing much", "print('x' * 10**6)"),
    _fine("printing much to stderr", "print('x' * 10**6, file=sys.stderr)"),
    _fine("writing much to descriptor 1", "for _ in range(99): os.write(1, bytes(1 << 16))"),
    _fine("printing what cannot be encoded", "print('\\ud800\\0')"),
    _fine("closing stdout", "sys.stdout.close()"),
    _fine("no stdout", "sys.stdout = sys.stderr = None"),
    _fine("closing the standard descriptors", "os.closerange(0, 3)"),
    _fine(
        "emptied builtins",
        "import builtins\nfor name in ('len', 'str', 'isinstance', 'type', 'tuple', 'issubclass'):"
        "\n    vars(builtins).pop(name, None)",
    ),
    _fine(
        "lying builtins",
        "import builtins\nbuiltins.len = lambda _: 5\n"
        "builtins.isinstance = builtins.issubclass = lambda *_: True",
    ),
    _fine("patched json", "json.dumps = json.loads = json.JSONEncoder.encode = None"),
    _fine("patched os", "os.write = os.read = os._exit = os.close = None"),
    _fine("patched struct", "struct.pack = struct.unpack = struct.Struct = None"),
    _fine("deleted modules", "sys.modules.clear()"),
    _fine("no path", "sys.path[:] = []; sys.meta_path[:] = []; sys.path_hooks[:] = []"),
    _fine("no garbage collection", "gc.disable(); gc.freeze(); gc.set_threshold(0)"),
    _fine(
        "constant garbage collection",
        "gc.set_threshold(1)\ngc.callbacks.append(lambda *_: 1 / 0) if False else gc.collect()",
    ),
    _fine("an audit hook", "sys.addaudithook(lambda *_: None)"),
    _fine("a high limit of recursion", "sys.setrecursionlimit(10**9)"),
    _fine("a text with NUL", "observation = 'a\\0b'", "a\0b"),
    _fine("a text with surrogates", "observation = 'a\\ud800b'", "a?b"),
    _fine(
        "a text of its own class",
        "class Own(str):\n    def __str__(self): return 'lie'\nobservation = Own('truth')",
        "truth",
    ),
    _fine(
        "a numpy reward",
        "import numpy\nreturn observation, numpy.float32(1), numpy.bool_(False), False, {}",
    ),
    _fine(
        "a deep info",
        "info = {}\nfor _ in range(10**5): info = {'x': info}\n"
        "self.kept = info\nreturn observation, reward, False, False, info",
    ),
    _fine(
        "a cyclic info",
        "info = {}\ninfo['x'] = info\nreturn observation, reward, False, False, info",
    ),
    _fine("a huge info", "return observation, reward, False, False, {'x': 'x' * 10**7}"),
    _fine(
        "a hostile info",
        "class Odd(dict):\n    def __getattribute__(self, name): return 1 / 0\n"
        "return observation, reward, False, False, Odd()",
    ),
    _fine(
        "an info that fails at its end",
        "class Odd:\n    def __del__(self): 1 / 0\nreturn observation, reward, False, False, Odd()",
    ),
    _fine("no environment variables", "os.environ.clear()"),
    _fine("an error hook", "sys.excepthook = sys.unraisablehook = lambda *_: os._exit(1)"),
    _fine("warnings as errors", "import warnings; warnings.simplefilter('error')"),
    _fine(
        "other signal handlers",
        "for number in (1, 2, 3, 10, 12, 13, 15, 17):\n    signal.signal(number, lambda *_: 1 / 0)",
    ),
    _fine("blocked signals", "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))"),
    _fine("reading standard input", "observation = repr(sys.stdin.read(9))", "''"),
)

OTHER_ATTACKS = (*TIMEOUTS, *MEMORY, *ERRORS, *CONTRACTS, *CRASHES, *PROTOCOLS, *FINE)
