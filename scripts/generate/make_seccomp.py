#!/usr/bin/env python3
"""Writes deploy/docker/seccomp.json: the system calls that lockstepd may make in a container.

A list of what is allowed, and nothing else is: Docker's own profile blocks mbind and its kin, newer
ones io_uring as well, and allows much that a daemon never needs.

  scripts/generate/make_seccomp.py            writes it
  scripts/generate/make_seccomp.py --check    exit code 1 if it is not what would be written
"""

import json
import pathlib
import sys

OUTPUT = pathlib.Path(__file__).resolve().parents[2] / "deploy/docker/seccomp.json"
EPERM = 1
ENOSYS = 38
NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag (clone(2))

# (why, system calls)
ALLOWED = [
    ("memory on the node where it is computed with",
     "mbind set_mempolicy get_mempolicy move_pages"),
    ("model files past the page cache, many reads in flight",
     "io_uring_setup io_uring_enter io_uring_register"),
    ("the memory itself: arenas, huge pages, weights that outlive a restart",
     "brk mmap munmap mremap mprotect madvise mincore mlock mlock2 munlock msync memfd_create "
     "ftruncate fallocate"),
    ("threads: pinned, sleeping, waking, naming themselves",
     "set_tid_address set_robust_list get_robust_list rseq futex membarrier "
     "sched_setaffinity sched_getaffinity sched_yield sched_getparam sched_getscheduler "
     "sched_get_priority_max sched_get_priority_min getcpu prctl arch_prctl gettid getpid getppid "
     "exit exit_group wait4"),
    ("signals: drain, reload, and a dump of every thread's stack",
     "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait rt_sigsuspend rt_sigpending "
     "rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack tgkill tkill kill signalfd4 restart_syscall "
     "pause"),
    ("clocks and timers",
     "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time timerfd_create "
     "timerfd_settime timerfd_gettime timer_create timer_settime timer_gettime timer_delete "
     "setitimer getitimer alarm"),
    ("sockets",
     "socket socketpair bind listen accept accept4 connect shutdown getsockname getpeername "
     "getsockopt setsockopt sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg sendfile"),
    ("waiting for many of them",
     "epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 poll ppoll select pselect6 "
     "eventfd2 pipe2 inotify_init1 inotify_add_watch inotify_rm_watch"),
    ("files and descriptors",
     "open openat openat2 close close_range read pread64 readv preadv preadv2 write pwrite64 writev "
     "pwritev lseek stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 "
     "readlink readlinkat getdents64 getcwd chdir dup dup2 dup3 fcntl flock fsync fdatasync "
     "fadvise64 readahead ioctl unlink unlinkat rename renameat renameat2 mkdir mkdirat umask "
     "fchmod fchmodat chmod"),
    ("who and where it is",
     "getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid setsid "
     "uname sysinfo getrandom getrusage getrlimit setrlimit prlimit64 getpriority times"),
    ("starting: what the container's runtime still does under this profile",
     "execve execveat capget capset setuid setgid setgroups setresuid setresgid fchdir fchown "
     "fchownat chown getxattr lgetxattr fgetxattr name_to_handle_at seccomp"),
]


def profile():
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []}],
        "syscalls": [
            {"names": sorted(names.split()), "action": "SCMP_ACT_ALLOW", "comment": why}
            for why, names in ALLOWED
        ] + [
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 0, "value": NEW_NAMESPACES, "valueTwo": 0,
                       "op": "SCMP_CMP_MASKED_EQ"}],
             "comment": "threads, but no namespaces"},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS,
             "comment": "its flags lie in memory, where no filter sees them: glibc then takes clone"},
        ],
    }


def main():
    text = json.dumps(profile(), indent=2) + "\n"
    if "--check" in sys.argv[1:]:
        if OUTPUT.read_text() != text:
            sys.exit(f"{OUTPUT} is not what this script writes: run it")
        return
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
