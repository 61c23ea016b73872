"""System calls that must be refused to an environment, whatever their arguments.

Each is made by its number, so that no library stands in its way. The refusal must be the filter's
own: the kernel's other errors (a bad argument, a bad address) would mean that it got through.
"""

from __future__ import annotations

import platform

from tests.envs.attacks import Attack, Outcome

_ARCH = {"x86_64": 0, "aarch64": 1}.get(platform.machine())

# name: number on x86_64, number on aarch64 (None: not there)
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    # further processes, other programs
    **{"clone": (56, 220), "clone3": (435, 435), "fork": (57, None), "vfork": (58, None)},
    **{"execve": (59, 221), "execveat": (322, 281), "unshare": (272, 97), "setns": (308, 268)},
    # other processes
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "ptrace": (101, 117)},
    **{"rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "kcmp": (312, 272)},
    **{"pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424)},
    **{"process_vm_readv": (310, 270), "process_vm_writev": (311, 271)},
    **{"process_madvise": (440, 440), "process_mrelease": (448, 448), "move_pages": (279, 239)},
    **{"perf_event_open": (298, 241), "get_robust_list": (274, 100), "prlimit64": (302, 261)},
    **{"setrlimit": (160, 164), "setpriority": (141, 140), "ioprio_set": (251, 30)},
    **{"sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119)},
    **{"sched_setattr": (314, 274), "setsid": (112, 157), "setpgid": (109, 154)},
    **{"wait4": (61, 260), "waitid": (247, 95)},
    # networks and channels
    **{"socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200)},
    **{"listen": (50, 201), "accept4": (288, 242), "sendto": (44, 206), "sendmsg": (46, 211)},
    **{"sendmmsg": (307, 269), "recvmsg": (47, 212), "recvfrom": (45, 207)},
    **{"shutdown": (48, 210), "setsockopt": (54, 208), "msgget": (68, 186), "shmget": (29, 194)},
    **{"shmat": (30, 196), "semget": (64, 190), "mq_open": (240, 180)},
    # descriptors
    **{"dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "pipe2": (293, 59)},
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "eventfd2": (290, 19)},
    **{"epoll_create1": (291, 20), "signalfd4": (289, 74), "timerfd_create": (283, 85)},
    **{"timer_create": (222, 107), "inotify_init1": (294, 26), "fanotify_init": (300, 262)},
    **{"userfaultfd": (323, 282), "splice": (275, 76), "vmsplice": (278, 75), "tee": (276, 77)},
    **{"sendfile": (40, 71), "copy_file_range": (326, 285), "writev": (20, 66)},
    **{"pwrite64": (18, 68), "pwritev": (296, 70), "pwritev2": (328, 287)},
    # files
    **{"creat": (85, None), "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47)},
    **{"mkdirat": (258, 34), "mknodat": (259, 33), "unlinkat": (263, 35), "linkat": (265, 37)},
    **{"symlinkat": (266, 36), "renameat2": (316, 276), "fchmod": (91, 52)},
    **{"fchmodat": (268, 53), "fchownat": (260, 54), "utimensat": (280, 88)},
    **{"setxattr": (188, 5), "flock": (73, 32), "fsync": (74, 82), "umask": (95, 166)},
    **{"chdir": (80, 49), "fchdir": (81, 50), "statfs": (137, 43), "openat2": (437, 437)},
    **{"name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265)},
    # the machine
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51)},
    **{"fsopen": (430, 430), "open_tree": (428, 428), "move_mount": (429, 429)},
    **{"mount_setattr": (442, 442), "swapon": (167, 224), "quotactl": (179, 60)},
    **{"acct": (163, 89), "sethostname": (170, 161), "settimeofday": (164, 170)},
    **{"clock_settime": (227, 112), "clock_adjtime": (305, 266), "syslog": (103, 116)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106)},
    **{"bpf": (321, 280), "keyctl": (250, 219), "add_key": (248, 217)},
    **{"request_key": (249, 218), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426)},
    **{"io_uring_register": (427, 427), "ioperm": (173, None), "iopl": (172, None)},
    # itself
    **{"setuid": (105, 146), "setresuid": (117, 147), "setgid": (106, 144)},
    **{"setgroups": (116, 159), "capset": (126, 91), "prctl": (157, 167)},
    **{"seccomp": (317, 277), "landlock_restrict_self": (446, 446), "personality": (135, 92)},
    **{"mlock": (149, 228), "mlockall": (151, 230), "mbind": (237, 235)},
    **{"remap_file_pages": (216, 234), "pkey_mprotect": (329, 288), "membarrier": (324, 283)},
    **{"arch_prctl": (158, None), "modify_ldt": (154, None), "set_tid_address": (218, 96)},
    "close_range": (436, 436),
}

# The filter looks at these calls' arguments, and only those here are refused.
_WITH_ARGUMENTS = {
    "write to another descriptor": ((1, 64), "0, b'x', 1"),
    "mmap of executable memory": ((9, 222), "0, 4096, 7, 0x22, -1, 0"),
    "mprotect to executable memory": ((10, 226), "0, 4096, 5"),
    "openat for writing": ((257, 56), "-100, (FOLDER + '/new').encode(), os.O_CREAT | 1, 0o600"),
    "openat to truncate": ((257, 56), "-100, FILE.encode(), os.O_TRUNC, 0"),
    "openat of a path only": ((257, 56), "-100, FILE.encode(), os.O_PATH, 0"),
    "openat of a file without a name": ((257, 56), "-100, FOLDER.encode(), os.O_TMPFILE | 2, 0"),
    "fcntl for signals": ((72, 25), "3, 8, HOST"),
    "fcntl for flags": ((72, 25), "3, 4, 0x2000"),
    "fcntl for a copy": ((72, 25), "3, 0, 9"),
}

_ERRORS = {  # what the filter answers; PermissionError unless told here
    **dict.fromkeys(("clone", "fork", "vfork"), "[Errno 11]"),
    **dict.fromkeys(("clone3", "openat2"), "[Errno 38]"),
}


def _attack(name: str, numbers: tuple[int | None, ...], arguments: str) -> Attack | None:
    number = None if _ARCH is None else numbers[_ARCH]
    if number is None:
        return None
    told = _ERRORS.get(name, "[Errno 1]")
    return Attack(f"call {name}", Outcome.DENIED, f"return raw({number}, {arguments})", told=told)


SYSTEM_CALLS = tuple(
    attack
    for attack in (
        *(_attack(name, numbers, "0, 0, 0, 0, 0, 0") for name, numbers in _NUMBERS.items()),
        *(_attack(name, *made) for name, made in _WITH_ARGUMENTS.items()),
    )
    if attack is not None
)
