/* Signals to all of an execution's processes, found by walking /proc.
 *
 * With a cgroup: every process whose unified line equals that of the first process. Without (no descriptor was given, or
 * the agent itself lies in the same group): the session of the first process and the descendants of its members. This
 * is a courtesy for signals that programs handle; the certain kill is the node's cgroup.kill.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

#define PROCESSES_MAX 4096u
#define PASSES_MAX 32

static ssize_t read_proc(pid_t pid, const char *file, char *buffer, size_t size)
{
    char path[64] = "/proc/", digits[12];
    size_t at = 6, count = 0;

    if (pid == 0) {
        memcpy(path + at, "self", 4);
        at += 4;
    }
    for (; pid > 0; pid /= 10)
        digits[count++] = (char)('0' + pid % 10);
    while (count > 0)
        path[at++] = digits[--count];
    path[at++] = '/';
    memcpy(path + at, file, strlen(file) + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, buffer, size - 1);
    close(fd);
    if (n >= 0)
        buffer[n] = 0;
    return n;
}

bool process_cgroup(pid_t pid, char *line, size_t size)
{
    char text[8192];

    if (read_proc(pid, "cgroup", text, sizeof text) <= 0)
        return false;
    for (char *p = text; p != NULL && *p != 0;) {
        char *newline = strchr(p, '\n');
        if (newline != NULL)
            *newline = 0;
        if (strncmp(p, "0::", 3) == 0) {
            size_t length = strlen(p);
            if (length >= size)
                return false;
            memcpy(line, p, length + 1);
            return true;
        }
        p = newline == NULL ? NULL : newline + 1;
    }
    return false;
}

struct process { pid_t pid, parent, session; bool member, signalled; };
static struct process table[PROCESSES_MAX];
static unsigned table_count;

/* Parent and session from stat; the name in it may hold anything, parentheses too. False for zombies. */
static bool read_stat(struct process *p)
{
    char text[512];

    if (read_proc(p->pid, "stat", text, sizeof text) <= 0)
        return false;
    char *after = strrchr(text, ')');
    if (after == NULL || after[1] != ' ' || after[2] == 'Z' || after[2] == 'X')
        return false;
    char *end;
    p->parent = (pid_t)strtol(after + 3, &end, 10);
    (void)strtol(end, &end, 10);
    p->session = (pid_t)strtol(end, NULL, 10);
    return true;
}

static struct process *known(pid_t pid)
{
    for (unsigned i = 0; i < table_count; i++)
        if (table[i].pid == pid)
            return &table[i];
    return NULL;
}

static void scan(DIR *proc)
{
    struct dirent *entry;
    pid_t self = getpid();

    rewinddir(proc);
    while ((entry = readdir(proc)) != NULL) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0 || pid == self || table_count == PROCESSES_MAX || known(pid) != NULL)
            continue;
        table[table_count] = (struct process){ .pid = pid };
        if (read_stat(&table[table_count]))
            table_count++;
    }
}

static void mark_by_cgroup(const struct stream *s)
{
    char line[CGROUP_LINE_MAX];

    for (unsigned i = 0; i < table_count; i++)
        if (!table[i].signalled && process_cgroup(table[i].pid, line, sizeof line))
            table[i].member = strcmp(line, s->cgroup) == 0;
}

static void mark_by_session(const struct stream *s)
{
    bool more = true;

    for (unsigned i = 0; i < table_count; i++)
        if (table[i].session == s->session || table[i].pid == s->pid)   /* the latter: before its setsid */
            table[i].member = true;
    while (more) {
        more = false;
        for (unsigned i = 0; i < table_count; i++) {
            struct process *parent = table[i].member ? NULL : known(table[i].parent);
            if (parent != NULL && parent->member)
                more = table[i].member = true;
        }
    }
}

/* The id of a session that is gone may be another execution's by now. */
static bool session_reused(const struct stream *s)
{
    for (unsigned i = 0; i < stream_high; i++)
        if (&streams[i] != s && streams[i].kind != KIND_FREE && streams[i].pid != 0
            && streams[i].session == s->session)
            return true;
    return false;
}

void tree_signal(const struct stream *s, int number)
{
    char own[CGROUP_LINE_MAX];
    bool by_cgroup = s->cgroup[0] != 0 && process_cgroup(0, own, sizeof own) && strcmp(own, s->cgroup) != 0;

    if (s->session == 0 || (!by_cgroup && session_reused(s)))
        return;
    DIR *proc = opendir("/proc");
    if (proc == NULL) {
        if (s->pid > 0)
            kill(-s->pid, number);
        return;
    }
    table_count = 0;
    for (int pass = 0; pass < PASSES_MAX; pass++) {
        bool sent = false;
        scan(proc);
        if (by_cgroup)
            mark_by_cgroup(s);
        else
            mark_by_session(s);
        for (unsigned i = 0; i < table_count; i++) {
            if (!table[i].member || table[i].signalled)
                continue;
            table[i].signalled = sent = true;
            kill(table[i].pid, number);
        }
        if (!sent)
            break;
    }
    closedir(proc);
}
