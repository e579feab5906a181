/* See child.h. The order matters: the cgroup is joined while still privileged and before anything that may block, the
 * user's own rights apply from chdir on. */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

void child_reset_signals(void)
{
    static const unsigned long by_default[4];   /* the kernel's struct: handler, flags, restorer, mask */
    sigset_t none;

    /* Past the C library, which keeps its own signals to itself; fails for SIGKILL and SIGSTOP. */
    for (int number = 1; number < 65; number++)
        syscall(SYS_rt_sigaction, number, by_default, NULL, sizeof by_default[3]);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void close_span(unsigned first, unsigned last)
{
    if (first > last)
        return;
#ifdef SYS_close_range
    if (syscall(SYS_close_range, first, last, 0) == 0)
        return;
#endif
    struct rlimit files;   /* a kernel before 5.9, or a seccomp filter that does not know the call */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && last >= files.rlim_cur)
        last = (unsigned)files.rlim_cur;
    for (unsigned fd = first; fd <= last; fd++)
        close((int)fd);
}

void child_close_others(const int *keep, unsigned count)
{
    unsigned first = 3;

    for (;;) {
        unsigned next = ~0u;
        for (unsigned i = 0; i < count; i++)
            if (keep[i] >= (int)first && (unsigned)keep[i] < next)
                next = (unsigned)keep[i];
        close_span(first, next == ~0u ? ~0u : next - 1);
        if (next == ~0u)
            return;
        first = next + 1;
    }
}

bool vectors_build(struct vectors *v, const struct start_request *r, unsigned env_room)
{
    struct tlv_reader reader;
    struct tlv t;
    uint32_t argc = 0, envc = 0;

    v->argv = calloc((size_t)r->argc + 1, sizeof *v->argv);
    v->envp = calloc((size_t)r->envc + env_room + 1, sizeof *v->envp);
    if (v->argv == NULL || v->envp == NULL)
        return false;
    tlv_open(&reader, r->payload, r->length);
    while (tlv_next(&reader, &t)) {
        char *value = (char *)(uintptr_t)t.value;
        if (t.tag == 1 && argc < r->argc)
            v->argv[argc++] = value;
        else if (t.tag == 2 && envc < r->envc)
            v->envp[envc++] = value;
    }
    /* only now: the byte behind a value is the next element's tag */
    tlv_open(&reader, r->payload, r->length);
    for (bool more = tlv_next(&reader, &t); more;) {
        char *end = (char *)(uintptr_t)(t.value + t.length);
        bool ours = t.tag == 1 || t.tag == 2;
        more = tlv_next(&reader, &t);
        if (ours)
            *end = 0;
    }
    return true;
}

static void join_cgroup(const struct child_setup *setup)
{
    char line[CGROUP_LINE_MAX];

    if (setup->cgroup_fd < 0)
        return;
    if (write(setup->cgroup_fd, "0", 1) != 1)
        report_failure(setup->report_fd, "cgroup", errno, "cannot join the cgroup");
    if (process_cgroup(0, line, sizeof line))
        report_send(setup->report_fd, REPORT_CGROUP, (const uint8_t *)line, strlen(line));
}

static bool write_score(int score)
{
    char text[8];
    size_t at = sizeof text;
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    do {
        text[--at] = (char)('0' + score % 10);
        score /= 10;
    } while (score > 0);
    bool ok = write(fd, text + at, sizeof text - at) > 0;
    close(fd);
    return ok;
}

static void add_oom_score(uint64_t add)
{
    char text[16] = "";
    int fd, own = 0;

    if (add == 0)
        return;
    fd = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        if (n > 0)
            own = atoi(text);
    }
    int score = own + (int)add;
    score = score > 1000 ? 1000 : score < 0 ? 0 : score;
    if (write_score(score))
        return;
    /* files under /proc/self of a process that is not dumpable belong to root; without root, be dumpable until exec */
    prctl(PR_SET_DUMPABLE, 1);
    (void)write_score(score);   /* no /proc: the score is a preference, the limit itself is the cgroup's */
}

int make_folders(char *path)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != 0)
            continue;
        char kept = *p;
        *p = 0;
        int error = mkdir(path, 0777) == 0 ? 0 : errno;
        *p = kept;
        /* EEXIST may be a link to a folder; what it is shows when the next part, or the caller, goes through it */
        if (error != 0 && error != EEXIST && error != EROFS && error != EACCES)
            return error;
        if (kept == 0)
            return error == EEXIST ? 0 : error;
    }
}

static char *joined(const char *key, const char *value)
{
    size_t a = strlen(key), b = strlen(value);
    char *entry = malloc(a + b + 1);

    if (entry == NULL)
        return NULL;
    memcpy(entry, key, a);
    memcpy(entry + a, value, b + 1);
    return entry;
}

static const char *env_get(char **envp, const char *key)
{
    size_t length = strlen(key);

    for (; *envp != NULL; envp++)
        if (strncmp(*envp, key, length) == 0)
            return *envp + length;
    return NULL;
}

static void add_user_env(char **envp, uint32_t count, const struct identity *who)
{
    const char *keys[] = { "HOME=", "USER=", "LOGNAME=", "SHELL=" };
    const char *values[] = { who->home, who->name, who->name, who->shell };

    for (unsigned i = 0; i < 4; i++)
        if (values[i][0] != 0 && env_get(envp, keys[i]) == NULL) {
            envp[count] = joined(keys[i], values[i]);
            if (envp[count] != NULL)
                count++;
        }
}

static void enter_cwd(const struct child_setup *setup, const struct identity *who)
{
    const struct start_request *r = setup->request;
    char path[PATH_BYTES_MAX + 1];
    int error;

    if (r->cwd.data == NULL) {
        if (chdir(who->home) < 0 && chdir("/") < 0)
            report_failure(setup->report_fd, "chdir", errno, "cannot enter the home folder");
        return;
    }
    memcpy(path, r->cwd.data, r->cwd.length);
    path[r->cwd.length] = 0;
    if (chdir(path) == 0)
        return;
    error = errno;
    if (error == ENOENT && (r->flags & START_MAKE_CWD)) {
        error = make_folders(path);
        if (error == 0 && chdir(path) == 0)
            return;
        if (error == 0)
            error = errno;
    }
    report_failure(setup->report_fd, "chdir", error, "cannot enter the working directory");
}

/* A file that the kernel does not know how to run: text is a shell script, as for execvp(3); anything else is not. */
static void try_script(const char *path, const struct vectors *v, uint32_t argc)
{
    char head[256];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof head);

    if (fd >= 0)
        close(fd);
    char **argv = calloc((size_t)argc + 2, sizeof *argv);
    if (argv != NULL && (n < 0 || memchr(head, 0, (size_t)n) == NULL)) {
        argv[0] = (char *)(uintptr_t)"/bin/sh";
        argv[1] = (char *)(uintptr_t)path;
        memcpy(argv + 2, v->argv + 1, (argc - 1) * sizeof *argv);
        execve(argv[0], argv, v->envp);
    }
    errno = ENOEXEC;
}

static void try_exec(const char *path, const struct vectors *v, uint32_t argc)
{
    execve(path, v->argv, v->envp);
    if (errno == ENOEXEC)
        try_script(path, v, argc);
}

/* execvp(3) by hand, for the PATH of the given environment. Returns the errno that tells most. */
static int search_exec(const struct vectors *v, uint32_t argc)
{
    const char *name = v->argv[0], *path = env_get(v->envp, "PATH=");
    size_t name_length = strlen(name);
    char full[2 * PATH_BYTES_MAX];
    bool denied = false;

    if (strchr(name, '/') != NULL) {
        try_exec(name, v, argc);
        return errno;
    }
    if (name_length > 255)
        return ENAMETOOLONG;
    if (path == NULL)
        path = DEFAULT_PATH;
    for (;;) {
        size_t length = strcspn(path, ":");
        if (length <= PATH_BYTES_MAX) {
            memcpy(full, path, length);
            full[length] = '/';   /* an empty part means the working directory */
            memcpy(full + length + (length > 0), name, name_length + 1);
            try_exec(full, v, argc);
            if (errno == EACCES)
                denied = true;
            else if (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG)
                return errno;
        }
        if (path[length] == 0)
            return denied ? EACCES : ENOENT;
        path += length + 1;
    }
}

void child_run(const struct child_setup *setup)
{
    static struct identity who;   /* large: kept off the stack */
    const struct start_request *r = setup->request;
    struct vectors v;
    int error;

    child_reset_signals();
    join_cgroup(setup);
    add_oom_score(r->oom_score_adj);
    setsid();
    for (int i = 0; i < 3; i++)
        if (dup2(setup->stdio[i], i) < 0)
            report_failure(setup->report_fd, "fork", errno, "cannot set up standard streams");
    child_close_others(&setup->report_fd, 1);
    setrlimit(RLIMIT_NOFILE, &agent.files);
    umask((mode_t)r->umask);
    error = identity_lookup(&who, r->user);
    if (error != 0)
        report_failure(setup->report_fd, "user", error, "no such user");
    if (r->columns > 0) {
        error = terminal_take(who.uid);
        if (error != 0)
            report_failure(setup->report_fd, "terminal", error, "the terminal cannot be taken over");
    }
    error = identity_assume(&who);
    if (error != 0)
        report_failure(setup->report_fd, "user", error, "cannot become that user");
    enter_cwd(setup, &who);
    if (!vectors_build(&v, r, 4))
        report_failure(setup->report_fd, "exec", ENOMEM, "no memory for argv");
    if (r->flags & START_USER_ENV)
        add_user_env(v.envp, r->envc, &who);
    error = search_exec(&v, r->argc);
    report_failure(setup->report_fd, "exec", error, "cannot run the program");
}
