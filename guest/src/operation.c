/* The agent's side of a file operation: a forked worker with the user's rights, and a relay between it and the link.
 *
 * The worker reads input from a pipe and writes output into one; the report channel carries its RESULT or FAILED and,
 * towards it, one byte "commit" when the node has sent everything. The end of the input without that byte means: undo.
 * Output goes from the pipe straight into the link's buffer, since nothing of it is kept for a second link.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "worker.h"

#define PIPE_BYTES (1 << 20)
#define UNDO_FILE_MS 2000
#define UNDO_ARCHIVE_MS 10000

static bool takes_input(uint64_t operation)
{
    return operation == OP_WRITE || operation == OP_ARCHIVE_IN || operation == OP_WATCH;
}

static bool gives_output(uint64_t operation)
{
    return operation == OP_READ || operation == OP_LIST || operation == OP_ARCHIVE_OUT
        || operation == OP_WATCH;
}

static bool large_pipe(int fds[2])
{
    if (pipe2(fds, O_CLOEXEC) < 0)
        return false;
    (void)fcntl(fds[0], F_SETPIPE_SZ, PIPE_BYTES);   /* above the user's share of pipe memory it stays 64 KiB */
    return true;
}

/* fds: input r w, output r w, report ours worker's; -1 where there is none. */
static bool open_pipes(int fds[6], uint64_t operation)
{
    for (int i = 0; i < 6; i++)
        fds[i] = -1;
    return (!takes_input(operation) || large_pipe(fds)) && (!gives_output(operation) || large_pipe(fds + 2))
        && report_pair(fds + 4);
}

void operation_start(struct stream *s, const uint8_t *payload, size_t length)
{
    struct file_request r;
    int fds[6];
    const char *wrong = file_decode(&r, payload, length);

    if (wrong != NULL) {
        stream_fail(s, "protocol", EINVAL, wrong);
        return;
    }
    if (!open_pipes(fds, r.operation) || !stream_map(s, 0, takes_input(r.operation) ? FILE_WINDOW_BYTES : 0)) {
        stream_fail(s, "fork", errno, "no descriptors or memory for one more operation");
        close_all(fds, 6);
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        struct worker_setup setup = { .request = &r, .in_fd = fds[0], .out_fd = fds[3], .report_fd = fds[5] };
        worker_run(&setup);
    }
    if (pid < 0) {
        stream_fail(s, "fork", errno, "cannot fork");
        close_all(fds, 6);
        return;
    }
    int theirs[3] = { fds[0], fds[3], fds[5] };
    close_all(theirs, 3);
    s->pid = pid;
    s->phase = PHASE_RUNNING;
    s->operation = (uint8_t)r.operation;
    s->has_output = gives_output(r.operation);
    s->in.fd = fds[1];
    s->out[0].fd = fds[2];
    s->report_fd = fds[4];
    if (!keep_end(fds[4], EPOLLIN | EPOLLET, s, WATCH_REPORT)
        || (fds[1] >= 0 && !keep_end(fds[1], EPOLLOUT | EPOLLET, s, WATCH_STDIN))
        || (fds[2] >= 0 && !keep_end(fds[2], EPOLLIN | EPOLLET, s, WATCH_OUT0))) {
        stream_fail(s, "fork", errno, "cannot watch the worker's pipes");
        kill(pid, SIGKILL);
    }
}

/* A failure outranks a RESULT: a read may break after its RESULT was sent. */
static void on_failure(struct stream *s, const uint8_t *payload, size_t length)
{
    if (s->final_type == T_FAILED || s->complete)
        return;
    free(s->final);
    s->final = NULL;
    s->final_type = 0;
    s->final_sent = false;
    stream_finish(s, T_FAILED, payload, length);
    source_close(&s->out[0]);
    sink_close(&s->in);
}

static void on_result(struct stream *s, const uint8_t *payload, size_t length)
{
    if (s->final_type == 0)
        stream_finish(s, T_RESULT, payload, length);
    else if (s->operation != OP_READ)
        return;
    else
        s->complete = true;   /* a read's second RESULT: all bytes are in the pipe */
    if (s->operation != OP_READ)
        s->complete = true;
}

static void read_report(struct stream *s)
{
    uint8_t record[REPORT_MAX];

    while (s->report_fd >= 0 && s->report_ready) {
        ssize_t n = recv(s->report_fd, record, sizeof record, 0);
        if (n < 0 && (errno == EINTR || errno == ECONNRESET))
            continue;   /* ECONNRESET: it went without reading all we sent; what it sent is still to come */
        if (n < 0 && errno == EAGAIN) {
            s->report_ready = false;
        } else if (n <= 0) {
            close(s->report_fd);
            s->report_fd = -1;
        } else if (record[0] == REPORT_FAILED) {
            on_failure(s, record + 1, (size_t)n - 1);
        } else if (record[0] == REPORT_RESULT) {
            on_result(s, record + 1, (size_t)n - 1);
        }
    }
}

static bool relay_output(struct stream *s)
{
    struct source *o = &s->out[0];
    int error;

    if (s->operation == OP_READ && !s->final_sent)
        return false;
    enum relayed relayed = relay(s, FILE_WINDOW_BYTES, &error);
    if (relayed != RELAYED_END)
        return relayed == RELAYED_SOME;
    source_close(o);
    s->report_ready = true;   /* the worker reports before it closes its end */
    read_report(s);
    o->eof = s->complete;     /* if not, it died in the middle: reaping it gives the FAILED */
    return true;
}

void operation_commit(struct stream *s)
{
    uint8_t byte = 'C';

    if (send(s->report_fd, &byte, 1, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET)
        warn("cannot tell a worker to commit");   /* it then undoes, and says so */
    sink_close(&s->in);
}

bool operation_pump(struct stream *s, int64_t now)
{
    bool changed = false;

    if (s->kill_at_ms != 0 && now >= s->kill_at_ms) {
        s->kill_at_ms = 0;
        if (s->pid > 0)
            kill(s->pid, SIGKILL);
    }
    if (s->report_ready)
        read_report(s);
    if (s->orphan)
        return false;
    changed |= sink_drain(&s->in);
    if (s->in.eof && s->in.consumed == s->in.received && s->in.fd >= 0)
        operation_commit(s);
    return relay_output(s) || changed;
}

void operation_reaped(struct stream *s, int status)
{
    s->pid = 0;
    s->kill_at_ms = 0;
    s->report_ready = true;
    read_report(s);
    if (s->orphan) {
        stream_free(s);
        return;
    }
    if (s->complete || s->final_type == T_FAILED)
        return;
    uint8_t payload[128];
    const char *message = s->aborting ? "aborted" : "the worker was killed";
    on_failure(s, payload, tlv_failed(payload, sizeof payload, "aborted", WIFSIGNALED(status) ? EINTR : EIO, message));
}

void operation_abort(struct stream *s, int64_t now)
{
    if (s->pid <= 0) {
        if (s->orphan)
            stream_free(s);
        return;
    }
    if (s->aborting)
        return;
    s->aborting = true;
    source_close(&s->out[0]);
    sink_close(&s->in);
    kill(s->pid, SIGTERM);
    kill(s->pid, SIGCONT);   /* the user may have stopped it */
    s->kill_at_ms = now + (s->operation == OP_ARCHIVE_IN ? UNDO_ARCHIVE_MS : UNDO_FILE_MS);
}
