"""What a program may try by Python's own means and must be refused."""

from __future__ import annotations

from spade_jax.envs.confine import Tier
from tests.envs.attacks import Attack, Outcome

_LOOKS = (Tier.B,)  # names and sizes of the host's files are not hidden in this tier


def _no(
    name: str,
    text: str,
    works: str = "anyone",
    *,
    raises: tuple[str, ...] = (),
    free: tuple[Tier, ...] = (),
) -> Attack:
    return Attack(name, Outcome.DENIED, text, raises=raises, free=free, works=works)


_FORK = "pid = os.fork()\nif pid == 0: os._exit(0)\nreturn pid"
_DAEMON = (
    "pid = os.fork()\nif pid == 0:\n    os.setsid()\n    os.fork()\n    os._exit(0)\nreturn pid"
)
_THREAD = ("RuntimeError",)
_RUN = "import subprocess\nreturn subprocess.run"

PROCESSES = (
    _no("fork", _FORK),
    _no("fork as a daemon", _DAEMON),
    _no("forkpty", "import pty\npid, fd = pty.fork()\nif pid == 0: os._exit(0)\nreturn pid"),
    _no("vfork by libc", "pid = check(libc.syscall(57))\nif pid == 0: os._exit(0)\nreturn pid", ""),
    _no("posix_spawn", "return os.posix_spawn('/bin/sh', ['sh', '-c', ':'], {})"),
    _no("spawn", "return some(os.spawnv(os.P_WAIT, '/bin/sh', ['sh', '-c', 'exit 3']) == 3)"),
    _no("system", "return some(os.system('exit 3') == 3 << 8)"),
    _no("popen", "return some(os.popen('echo x').read())"),
    _no("subprocess", f"{_RUN}(['/bin/sh', '-c', 'exit 3']).returncode"),
    _no("subprocess by a shell", f"{_RUN}('exit 3', shell=True).returncode"),
    _no("subprocess that keeps descriptors", f"{_RUN}(['/bin/sh'], close_fds=False).returncode"),
    _no("exec", "os.execv('/bin/sh', ['sh', '-c', ':'])", ""),
    _no("exec of a descriptor", "os.execve(0, ['sh'], {})", ""),
    _no(
        "a thread",
        "import threading\nt = threading.Thread(target=int)\nt.start()\nreturn t.join()",
        raises=_THREAD,
    ),
    _no("a raw thread", "import _thread\nreturn _thread.start_new_thread(int, ())", raises=_THREAD),
    _no(
        "a timer thread",
        "import threading\nt = threading.Timer(0, int)\nt.start()\nreturn t.join()",
        raises=_THREAD,
    ),
    _no(
        "a thread pool",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "return ThreadPoolExecutor(1).submit(int).result()",
        raises=_THREAD,
    ),
    _no(
        "a process pool of futures",
        "from concurrent.futures import ProcessPoolExecutor\n"
        "with ProcessPoolExecutor(1) as pool: return pool.submit(int).result()",
        raises=_THREAD,
    ),
    _no(
        "multiprocessing",
        "import multiprocessing\np = multiprocessing.Process(target=int)\np.start()\n"
        "p.join()\nreturn p.exitcode",
    ),
    _no("a lock of multiprocessing", "import multiprocessing\nreturn multiprocessing.Lock()"),
    _no(
        "a pool of multiprocessing",
        "import multiprocessing.pool\n"
        "with multiprocessing.Pool(1) as pool: return pool.map(int, '1')",
        raises=_THREAD,
    ),
    _no("an asyncio loop", "import asyncio\nreturn asyncio.run(asyncio.sleep(0, 5))"),
    _no("waiting for children", "return os.waitpid(-1, 0)", ""),
)

_KILL_SIBLINGS = """import sys
frame = sys._getframe()
while frame is not None:
    owner = frame.f_locals.get("self")
    if type(owner).__name__ == "Zygote":
        return some(owner.pids) and owner.kill(tuple(owner.pids))
    frame = frame.f_back
return some(None)"""

SIGNALS = (
    _no("kill the parent", "os.kill(os.getppid(), 9)", ""),
    _no("kill everybody", "os.kill(-1, 9)", ""),
    _no("kill process 1", "os.kill(1, 9)", ""),
    _no("kill its group", "os.kill(0, 9)", ""),
    _no("kill its group by name", "os.killpg(os.getpgid(0), 9)", ""),
    _no("kill the host", "os.kill(HOST, 9)", ""),
    _no("kill the host's group", "os.killpg(HOST, 9)", ""),
    _no("ask for the host", "return os.kill(HOST, 0)"),
    _no("a handle on the host", "return os.pidfd_open(HOST)"),
    _no("kill by a handle", "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)", ""),
    _no("kill its siblings", _KILL_SIBLINGS, ""),
    _no("stop itself", "signal.raise_signal(signal.SIGSTOP)", ""),
    _no("stop itself by number", "os.kill(libc.getpid(), signal.SIGSTOP)", ""),
    _no(
        "stop its thread",
        "import _thread\nsignal.pthread_kill(_thread.get_ident(), signal.SIGSTOP)",
        "",
    ),
    _no("own signals for the host", "import fcntl\nreturn fcntl.fcntl(1, fcntl.F_SETOWN, HOST)"),
    _no(
        "own signals for a group", "import fcntl\nreturn fcntl.fcntl(1, fcntl.F_SETOWN, -HOST)", ""
    ),
    _no("another signal of a descriptor", "import fcntl\nreturn fcntl.fcntl(1, 10, 9)"),
    _no("signals of the channel", "import fcntl\nreturn fcntl.fcntl(3, fcntl.F_SETFL, 0x2000)", ""),
    _no("outlive its parent", "return check(libc.prctl(1, 0, 0, 0, 0))"),
    _no("become readable", "return check(libc.prctl(4, 1, 0, 0, 0))"),
    _no("adopt orphans", "return check(libc.prctl(36, 1, 0, 0, 0))"),
    _no("another name", "return check(libc.prctl(15, b'sshd', 0, 0, 0))"),
    _no("trace the host", "return check(libc.ptrace(16, HOST, 0, 0))", ""),
    _no("be traced", "return check(libc.ptrace(0, 0, 0, 0))"),
)

_INET = "s = socket.socket(); s.settimeout(2)"
_FAMILY = "s = socket.socket(socket.AF_UNIX)"

NETWORK = (
    _no("TCP", f"{_INET}\ns.connect(('127.0.0.1', TCP))\nreturn s.send(b'x')"),
    _no("TCP by name", "return socket.create_connection(('localhost', TCP), 2).send(b'x')"),
    _no("TCP to the world", f"{_INET}\nreturn s.connect(('192.0.2.1', 80))", ""),
    _no("UDP", "return socket.socket(type=2).sendto(b'x', ('127.0.0.1', TCP))"),
    _no("TCP by IPv6", "return socket.socket(socket.AF_INET6)", ""),
    _no("listening", f"{_INET}\ns.bind(('127.0.0.1', 0))\ns.listen()\nreturn s.getsockname()"),
    _no("a unix socket", f"{_FAMILY}\ns.connect(UNIX)\nreturn s.send(b'x')"),
    _no("an abstract socket", f"{_FAMILY}\ns.connect('\\0' + ABSTRACT)\nreturn s.send(b'x')"),
    _no("a datagram", "s = socket.socket(socket.AF_UNIX, 2)\nreturn s.bind('\\0' + NAME)"),
    _no("a pair of sockets", "return socket.socketpair()[0].fileno()"),
    _no("raw packets", "return socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno()", "root"),
    _no("netlink", "return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).fileno()"),
    _no("names of interfaces", "return some(socket.if_nameindex())"),
    _no("a look-up", "return socket.getaddrinfo('example.com', 80)", ""),
    _no("an old look-up", "return socket.gethostbyname('example.com')", ""),
    _no(
        "urllib",
        "import urllib.request as r\nreturn r.urlopen(f'http://127.0.0.1:{TCP}', timeout=1)",
        "",
    ),
    _no("the channel as a socket", "return socket.socket(fileno=3).send(b'x')", ""),
    _no(
        "descriptors by the channel",
        "s = sys.channel = socket.socket(socket.AF_UNIX, 1, 0, 3)\n"
        "return socket.send_fds(s, [b'x'], [0])",
        "",
    ),
    _no(
        "shutting the channel",
        "s = sys.channel = socket.socket(socket.AF_UNIX, 1, 0, 3)\nreturn s.shutdown(2)",
        "",
    ),
    _no("a copy of the channel", "return os.dup(3)", ""),
    _no("the channel as standard input", "return os.dup2(3, 0)", ""),
    _no("sending a file by the channel", "return os.sendfile(3, 0, 0, 9)", ""),
    _no(
        "other descriptors",
        "import select\n"
        "poll = select.poll()\nfor fd in range(4, 2000): poll.register(fd)\n"
        "return some([fd for fd, event in poll.poll(0) if event != select.POLLNVAL])",
        "",
        raises=("ValueError",),
    ),
    _no("select on other descriptors", "import select\nreturn select.select([4], [], [], 0)", ""),
    _no("closing others' descriptors", "for fd in range(4, 64): os.fstat(fd)", ""),
    _no("typing for the user", "import fcntl\nreturn fcntl.ioctl(0, 0x5412, b'x')", ""),
    _no("a terminal", "return os.openpty()"),
    _no("a larger pipe", "import fcntl\nreturn fcntl.fcntl(1, 1031, 1 << 20)", ""),
)

_OPEN_AT = "return os.read(os.open('etc/passwd', os.O_RDONLY, dir_fd=fd), 99)"
_UP = "os.path.dirname(os.__file__) + '/..' * 20"

READING = (
    _no("the load of the machine", "return os.getloadavg()"),
    _no("a host file", "return open(FILE).read()"),
    _no("a host file by a link", "return open(FOLDER + '/link').read()"),
    _no("a host file by numpy", "import numpy\nreturn numpy.fromfile(FILE, dtype='u1')[:9]"),
    _no(
        "a host file in memory",
        "import mmap\nwith open(FILE, 'rb') as f: return mmap.mmap(f.fileno(), 0, prot=1)[:9]",
    ),
    _no(
        "a host file by libc",
        "libc.fopen.restype = ctypes.c_void_p\nreturn some(libc.fopen(FILE.encode(), b'r'))",
    ),
    _no(
        "a host file as a program",
        "import runpy\nreturn runpy.run_path(FOLDER + '/module.py')",
        raises=("ImportError",),
    ),
    _no(
        "a host file as a module",
        "sys.path.insert(0, FOLDER)\nimport module\nreturn module.x",
        raises=("ImportError",),
    ),
    _no("the project's files", "return open(SOURCE).read(9)"),
    _no("the source of a loaded module", "import inspect\nreturn inspect.getsource(contract.won)"),
    _no("passwd", "return open('/etc/passwd').read(9)"),
    _no("passwd by its module", "import pwd\nreturn some(pwd.getpwall())"),
    _no("shadow", "return open('/etc/shadow').read(9)", "root"),
    _no("passwd upwards from Python", f"return open({_UP} + '/etc/passwd').read(9)"),
    _no("passwd by a folder", f"fd = os.open('/', os.O_DIRECTORY)\n{_OPEN_AT}"),
    _no("passwd by a path", f"fd = os.open('/', os.O_PATH)\n{_OPEN_AT}"),
    _no("passwd by a library folder", f"fd = os.open({_UP}, os.O_DIRECTORY)\n{_OPEN_AT}"),
    *(
        _no(f"proc {what}", f"return some(open('/proc/{what}', 'rb').read(1))", works)
        for what, works in {
            **dict.fromkeys(("self/environ", "self/maps", "self/cmdline", "self/status"), "anyone"),
            **dict.fromkeys(("self/mem", "1/environ", "kcore"), ""),
            **dict.fromkeys(("cpuinfo", "net/tcp", "sys/kernel/osrelease", "uptime"), "anyone"),
            **dict.fromkeys(("self/root/etc/passwd", "thread-self/stat"), "anyone"),
        }.items()
    ),
    *(
        _no(f"the host's {what}", f"return some(open(f'/proc/{{HOST}}/{what}', 'rb').read(1))")
        for what in ("environ", "cmdline", "maps", "root/etc/passwd")
    ),
    _no("the host's descriptors", "return os.listdir(f'/proc/{HOST}/fd')"),
    _no("its parent's environment", "return open(f'/proc/{os.getppid()}/environ').read()"),
    _no("its own descriptors", "return os.listdir('/proc/self/fd')"),
    *(
        _no(f"device {name}", f"return os.open('/dev/{name}', os.O_RDONLY)", works)
        for name, works in {
            "null": "anyone",
            "zero": "anyone",
            "urandom": "anyone",
            "mem": "",
            "tty": "",
            "ptmx": "anyone",
            "shm": "anyone",
        }.items()
    ),
    *(
        _no(f"listing {path}", f"return some(os.listdir({path!r}))")
        for path in ("/proc", "/etc", "/dev", "/sys", "/var", "/home/..")
    ),
    _no("listing the root", "return some({'etc', 'proc', 'sys'} & set(os.listdir('/')))"),
    _no("listing /tmp", "return some([n for n in os.listdir('/tmp') if n in FOLDER])"),
    _no("listing a host folder", "return os.listdir(FOLDER)"),
    _no("scanning a host folder", "return [e.name for e in os.scandir(FOLDER)]"),
    _no("walking a host folder", "return some(list(os.walk(FOLDER)))"),
    _no("matching names", "import glob\nreturn some(glob.glob(FOLDER + '/*'))"),
    _no("the size of a host file", "return os.stat(FILE).st_size", free=_LOOKS),
    _no("whether a host file exists", "return some(os.path.exists(FILE))", free=_LOOKS),
    _no("access to a host file", "return some(os.access(FILE, os.F_OK))", free=_LOOKS),
    _no("where a link points", "return os.readlink(FOLDER + '/link')", free=_LOOKS),
    _no("the size of the file system", "return os.statvfs('/')"),
    _no("attributes of a host file", "return os.listxattr(FILE)", ""),
    _no(
        "a library",
        "import _ctypes\nreturn ctypes.CDLL(_ctypes.__file__.replace('_ctypes.', '_codecs_hk.'))",
    ),
    _no("a native module", "import _codecs_hk\nreturn str(_codecs_hk)", raises=("ImportError",)),
    _no("jax", "import jax\nreturn jax.__version__", "", raises=("ImportError",)),
    _no(
        "secrets in its memory",
        "mark = '-'.join(('spade', 'secret', ''))\n"
        "texts = [*os.environ.values(), *sys.argv, *sys.orig_argv]\n"
        "gc.unfreeze()\n"
        "for found in gc.get_objects():\n"
        "    if type(found) in (list, tuple, set, dict):\n"
        "        values = found.values() if type(found) is dict else found\n"
        "        texts += [value for value in values if type(value) is str]\n"
        "return some([text for text in texts if text.startswith(mark) and text != mark])",
        "",
    ),
    _no(
        "secrets in libc's environment",
        "libc.getenv.restype = ctypes.c_char_p\nreturn some(libc.getenv(b'SPADE_SECRET'))",
        "",
    ),
)

WRITING = (
    _no("overwrite", "return open(FILE, 'w')"),
    _no("append", "return open(FILE, 'a')"),
    _no("update", "return open(FILE, 'r+')"),
    _no("truncate while reading", "return os.open(FILE, os.O_RDONLY | os.O_TRUNC)"),
    _no("create while reading", "return os.open(FOLDER + '/new', os.O_RDONLY | os.O_CREAT)"),
    _no("create", "return open(FOLDER + '/new', 'x')"),
    _no("create in /tmp", "return open('/tmp/' + NAME, 'x')", ""),
    _no("create in shared memory", "return open('/dev/shm/' + NAME, 'x')", ""),
    _no(
        "create among Python's modules",
        "return open(os.path.join(os.path.dirname(os.__file__), NAME), 'x')",
        "",
    ),
    _no("create here", "return open(NAME, 'x')", ""),
    _no("a file without a name", "return os.open(FOLDER, os.O_TMPFILE | os.O_RDWR)", ""),
    _no("a temporary file", "import tempfile\nreturn tempfile.TemporaryFile().fileno()"),
    _no("a temporary folder", "import tempfile\nwith tempfile.TemporaryDirectory() as f: return f"),
    _no("a folder", "return os.mkdir(FOLDER + '/new')"),
    _no("remove a folder", "return os.rmdir(FOLDER + '/empty')"),
    _no("remove a file", "return os.unlink(FILE)"),
    _no("remove a tree", "import shutil\nreturn shutil.rmtree(FOLDER)"),
    _no("copy a file", "import shutil\nreturn shutil.copy(FILE, FOLDER + '/new')"),
    _no("rename", "return os.rename(FILE, FOLDER + '/new')"),
    _no("replace", "return os.replace(FOLDER + '/module.py', FILE)"),
    _no("link", "return os.link(FILE, FOLDER + '/new')"),
    _no("symbolic link", "return os.symlink(FILE, FOLDER + '/new')"),
    _no("rights", "return os.chmod(FILE, 0o777)"),
    _no("owner", "return os.chown(FILE, os.getuid(), os.getgid())"),
    _no("times", "return os.utime(FILE, (0, 0))"),
    _no("truncate", "return os.truncate(FILE, 0)"),
    _no("a fifo", "return os.mkfifo(FOLDER + '/new')"),
    _no("a device", "return os.mknod(FOLDER + '/new', 0o020600, os.makedev(1, 3))", "root"),
    _no("an attribute", "return os.setxattr(FILE, 'user.x', b'x')", ""),
    _no(
        "a cache of bytecode",
        "import py_compile\nreturn py_compile.compile(FOLDER + '/module.py', doraise=True)",
    ),
    _no("a log", "import logging\nreturn logging.FileHandler(FOLDER + '/new')"),
    _no("an array", "import numpy\nreturn numpy.save(FOLDER + '/new.npy', numpy.ones(2))"),
    _no("a map of a host file", "import numpy\nreturn numpy.memmap(FILE, 'u1', 'r+')[:1]"),
    _no(
        "shared memory",
        "from multiprocessing.shared_memory import SharedMemory\n"
        "memory = SharedMemory(create=True, size=9)\nmemory.unlink()\nreturn memory.name",
        raises=_THREAD,
    ),
    _no("a file in memory", "return os.memfd_create('x')"),
    _no("its score for the killer", "open('/proc/self/oom_score_adj', 'w').write('500')\nreturn 1"),
    _no("the name of core files", "return open('/proc/sys/kernel/core_pattern', 'r+')", "root"),
)

ITSELF = (
    _no("another root", "return os.chroot(FOLDER)", "root"),
    _no("another folder", "return os.chdir(FOLDER)"),
    _no("another mask", "return os.umask(0)"),
    _no("become root", "return os.setuid(0)", "root"),
    _no("become root for a while", "return os.seteuid(0)", "root"),
    _no("other groups", "return os.setgroups([0])", "root"),
    _no("another session", "return os.setsid()"),
    _no("another group", "return os.setpgid(0, 0)"),
    _no("new namespaces", "return check(libc.unshare(0x10000000))", ""),
    _no("priority", "return os.nice(1)"),
    _no("other cores", "return os.sched_setaffinity(0, {0})"),
    _no("another scheduler", "return os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"),
    *(
        _no(
            f"limit {name}",
            f"import resource\nreturn resource.setrlimit(resource.RLIMIT_{name}, (-1, -1))",
            "",
            raises=("ValueError",),
        )
        for name in ("AS", "CPU", "FSIZE", "NPROC", "CORE", "MEMLOCK")
    ),
    _no(
        "a lower limit",
        "import resource\nreturn resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))",
        raises=("ValueError",),
    ),
    _no(
        "the host's limits",
        "import resource\nreturn resource.prlimit(HOST, resource.RLIMIT_CORE, (0, 0))",
        "",
    ),
    _no("executable memory", "import mmap\nreturn mmap.mmap(-1, 4096, prot=7)[0]"),
    _no("locked memory", "return check(libc.mlockall(1))", "root"),
    _no("the clock", "return time.clock_settime(0, time.clock_gettime(0))", ""),
    _no("a pipe", "return os.pipe()"),
    _no("a counter of events", "return os.eventfd(0)"),
    _no("epoll", "import select\nreturn select.epoll().fileno()"),
    _no("mounting", "return check(libc.mount(b'none', FOLDER.encode(), b'tmpfs', 0, None))", ""),
)

REFUSALS = (*PROCESSES, *SIGNALS, *NETWORK, *READING, *WRITING, *ITSELF)
