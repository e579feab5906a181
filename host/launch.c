// What the root helper does between fork and exec. As a program of its own it costs a tenth of a fork of the helper,
// whose pages would have to be mapped and copied for it.
//
//   bellglass-launch run PARENT PROGRAM [ARGUMENT...]
//       PROGRAM (a path) in /. Its session, which the caller has made, is as nice to others as the process itself is.
//   bellglass-launch namespaces PARENT UID
//       A user namespace that UID owns, in which no other can be made, and a network namespace that belongs to it; stops
//       itself (SIGSTOP) when it is there.
//
// Both keep descriptors 0 to 2 alone, and die with PARENT. What can't be done is told on standard error, and the exit
// code is the errno, or 127 if PROGRAM can't be executed.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Noreturn void fail(const char *what) {
    int code = errno;
    fprintf(stderr, "bellglass-launch: %s: %s\n", what, strerror(code));
    exit(code > 0 && code < 126 ? code : 125);
}

static unsigned number(const char *text) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || end == text || *end || value > UINT_MAX) {
        errno = EINVAL;
        fail(text);
    }
    return (unsigned)value;
}

// The kernel sends the signal only for a death after the call. A change of ids clears it.
static void die_with(pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0) fail("PR_SET_PDEATHSIG");
    if (getppid() != parent) kill(getpid(), SIGKILL);
}

static int put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    size_t length = strlen(text);
    ssize_t written = write(fd, text, length);
    int code = written < 0 ? errno : EIO;
    close(fd);
    if (written == (ssize_t)length) return 0;
    errno = code;
    return -1;
}

// The kernel compares sessions before it compares processes. One without autogroups has no such file.
static void weigh_session(void) {
    int nice = getpriority(PRIO_PROCESS, 0);
    if (nice <= 0) return;
    char text[16];
    snprintf(text, sizeof text, "%d", nice);
    if (put("/proc/self/autogroup", text) < 0 && errno != ENOENT) fail("/proc/self/autogroup");
}

static _Noreturn void run(pid_t parent, char **argv) {
    die_with(parent);
    weigh_session();
    if (chdir("/") < 0) fail("/");
    execv(argv[0], argv);
    fprintf(stderr, "bellglass-launch: %s: %s\n", argv[0], strerror(errno));
    exit(127);
}

static _Noreturn void hold_namespaces(pid_t parent, unsigned uid) {
    // Keeps the right to unshare over the change of ids.
    if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0) fail("PR_SET_SECUREBITS");
    if (setresgid(uid, uid, uid) < 0) fail("setresgid");
    if (setresuid(uid, uid, uid) < 0) fail("setresuid");
    die_with(parent);
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0) fail("unshare(CLONE_NEWUSER | CLONE_NEWNET)");
    // From inside: nobody makes further ones below it, whatever the system call filter lets pass.
    if (put("/proc/sys/user/max_user_namespaces", "0") < 0) fail("/proc/sys/user/max_user_namespaces");
    raise(SIGSTOP);
    exit(0);
}

int main(int argc, char **argv) {
    if (syscall(SYS_close_range, 3U, ~0U, 0U) < 0) fail("close_range");
    if (argc >= 4 && strcmp(argv[1], "run") == 0) run((pid_t)number(argv[2]), argv + 3);
    if (argc == 4 && strcmp(argv[1], "namespaces") == 0) hold_namespaces((pid_t)number(argv[2]), number(argv[3]));
    fprintf(stderr, "usage: bellglass-launch run PARENT PROGRAM [ARGUMENT...] | namespaces PARENT UID\n");
    return EINVAL;
}
