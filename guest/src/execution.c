/* The agent's side of an execution: fork, pipes, outcome.
 *
 * The report channel decides whether the program started: its end without a failure means exec. The outcome is sent when
 * the first process is gone and both pipes are at their end, or had nothing to read for DRAIN_MS after that: a program
 * left in the background may hold them for ever. Their read ends are then closed, and a late writer gets SIGPIPE.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "child.h"

/* fds: stdin r w, stdout r w, stderr r w, report ours child's; -1 where there is none. Of a terminal the program has
 * one descriptor, the first, and the agent one for each direction. */
static bool open_pipes(int fds[8], bool with_stdin, const struct start_request *r)
{
    for (int i = 0; i < 8; i++)
        fds[i] = -1;
    if (r->columns > 0) {
        errno = terminal_open(&fds[2], &fds[0], r->columns, r->rows);
        if (errno != 0)
            return false;
        fds[1] = fcntl(fds[2], F_DUPFD_CLOEXEC, 3);
        return fds[1] >= 0 && report_pair(fds + 6);
    }
    return (!with_stdin || pipe2(fds, O_CLOEXEC) == 0) && pipe2(fds + 2, O_CLOEXEC) == 0
        && pipe2(fds + 4, O_CLOEXEC) == 0 && report_pair(fds + 6);
}

void execution_start(struct stream *s, const uint8_t *payload, size_t length, int cgroup_fd)
{
    struct start_request r;
    int fds[8];
    const char *wrong = start_decode(&r, payload, length);

    if (wrong != NULL) {
        stream_fail(s, "protocol", EINVAL, wrong);
        goto out;
    }
    bool terminal = r.columns > 0, with_stdin = terminal || r.flags & START_STDIN;
    if (!open_pipes(fds, with_stdin, &r) || !stream_map(s, terminal ? 1 : 2, with_stdin ? WINDOW_BYTES : 0)) {
        if (terminal && fds[2] < 0)
            stream_fail(s, "terminal", errno, "no terminal can be had");
        else
            stream_fail(s, "limit", errno, "no descriptors or memory for one more program");
        close_all(fds, 8);
        goto out;
    }
    pid_t pid = fork();
    if (pid == 0) {
        struct child_setup setup = { .request = &r, .report_fd = fds[7], .cgroup_fd = cgroup_fd,
            .stdio = { with_stdin ? fds[0] : agent.null_fd, terminal ? fds[0] : fds[3], terminal ? fds[0] : fds[5] } };
        child_run(&setup);
    }
    if (pid < 0) {
        stream_fail(s, "fork", errno, "cannot fork");
        close_all(fds, 8);
        goto out;
    }
    int theirs[4] = { fds[0], fds[3], fds[5], fds[7] };
    close_all(theirs, 4);
    s->pid = s->session = pid;
    s->phase = PHASE_STARTING;
    s->in.fd = fds[1];
    s->out[0].fd = fds[2];
    s->out[1].fd = fds[4];
    s->report_fd = fds[6];
    s->terminal = s->out[0].may_reopen = s->out[1].eof = terminal;
    if (!keep_end(fds[2], EPOLLIN | EPOLLET, s, WATCH_OUT0)
        || (!terminal && !keep_end(fds[4], EPOLLIN | EPOLLET, s, WATCH_OUT1))
        || !keep_end(fds[6], EPOLLIN | EPOLLET, s, WATCH_REPORT)
        || (with_stdin && !keep_end(fds[1], EPOLLOUT | EPOLLET, s, WATCH_STDIN))) {
        stream_fail(s, "limit", errno, "cannot watch the program's pipes");
        kill(pid, SIGKILL);
    }
    s->report_ready = true;
out:
    if (cgroup_fd >= 0)
        close(cgroup_fd);
}

static void read_report(struct stream *s)
{
    uint8_t record[1024];

    while (s->report_fd >= 0 && s->report_ready) {
        ssize_t n = recv(s->report_fd, record, sizeof record, 0);
        if (n < 0 && (errno == EINTR || errno == ECONNRESET))
            continue;   /* ECONNRESET: it went without reading all we sent; what it sent is still to come */
        if (n < 0 && errno == EAGAIN) {
            s->report_ready = false;
        } else if (n <= 0) {
            close(s->report_fd);
            s->report_fd = -1;
            if (s->phase == PHASE_STARTING)
                s->phase = PHASE_RUNNING;
        } else if (record[0] == REPORT_CGROUP && n - 1 < CGROUP_LINE_MAX) {
            memcpy(s->cgroup, record + 1, (size_t)n - 1);
            s->cgroup[n - 1] = 0;
        } else if (record[0] == REPORT_FAILED) {
            stream_finish(s, T_FAILED, record + 1, (size_t)n - 1);
            source_close(&s->out[0]);
            source_close(&s->out[1]);
            sink_close(&s->in);
        }
    }
}

static bool finish_if_drained(struct stream *s, int64_t now)
{
    bool changed = false;

    for (int i = 0; i < 2; i++) {
        struct source *o = &s->out[i];
        if (o->eof || o->empty_at_ms == 0 || now - o->empty_at_ms < DRAIN_MS)
            continue;
        /* the time before the exit does not count */
        if (now - s->exited_at_ms < DRAIN_MS)
            continue;
        o->ready = true;   /* a last look: bytes may have come since the last event was seen */
        if (!source_fill(o, o->empty_at_ms) && o->fd >= 0) {
            source_close(o);
            o->eof = true;
        }
        changed = true;
    }
    if (s->out[0].eof && s->out[1].eof)
        stream_finish(s, T_EXIT, s->exit, s->exit_length);
    return changed;
}

bool execution_pump(struct stream *s, int64_t now)
{
    bool changed = false;

    if (s->phase == PHASE_ASSEMBLING)
        return false;
    if (s->report_ready)
        read_report(s);
    if (s->orphan)
        return false;
    changed |= sink_drain(&s->in);
    if (s->in.eof && s->in.consumed == s->in.received && s->in.fd >= 0)
        sink_close(&s->in);
    changed |= source_fill(&s->out[0], now);
    changed |= source_fill(&s->out[1], now);
    if (s->phase == PHASE_EXITED && s->final_type == 0)
        changed |= finish_if_drained(s, now);
    return changed;
}

void execution_reaped(struct stream *s, int status, const struct rusage *usage)
{
    struct tlv_writer w = { .data = s->exit, .size = sizeof s->exit };

    s->pid = 0;
    s->report_ready = true;
    read_report(s);   /* the child's end is closed: STARTED or the failure is known now */
    s->exited_at_ms = now_ms();
    if (s->orphan) {
        stream_free(s);
        return;
    }
    if (s->final_type != 0)
        return;
    if (WIFSIGNALED(status))
        tlv_put_u64(&w, 2, (uint64_t)WTERMSIG(status));
    else
        tlv_put_u64(&w, 1, (uint64_t)WEXITSTATUS(status));
    tlv_put_u64(&w, 3, (uint64_t)usage->ru_utime.tv_sec * 1000000u + (uint64_t)usage->ru_utime.tv_usec);
    tlv_put_u64(&w, 4, (uint64_t)usage->ru_stime.tv_sec * 1000000u + (uint64_t)usage->ru_stime.tv_usec);
    tlv_put_u64(&w, 5, (uint64_t)usage->ru_maxrss * 1024u);
    s->exit_length = (uint8_t)w.used;
    s->phase = PHASE_EXITED;
    s->out[0].may_reopen = false;   /* the kernel hangs a terminal up when its session's leader ends */
    s->out[0].ready = s->out[1].ready = true;
}

void execution_abort(struct stream *s)
{
    if (s->pid <= 0)
        return;
    kill(-s->pid, SIGKILL);
    kill(s->pid, SIGKILL);   /* before its setsid the child is in the agent's own group */
}
