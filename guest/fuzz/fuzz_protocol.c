/* The node's bytes as the agent takes them: frames cut at arbitrary places, dispatched into the real stream table, with
 * the real decoders, windows and emitter. Only fork and the sockets are replaced: a started execution has rings, and a
 * pipe that is sometimes full. The first byte of the input says how long the reads are.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "agent.h"
#include "child.h"

struct agent agent;
static int sink_fd = -1;
static bool fd_waiting;

int64_t now_ms(void) { return 1; }
bool watch(int fd, uint32_t events, const struct stream *s, enum watch_what what)
{
    (void)fd, (void)events, (void)s, (void)what;
    return true;
}
void warn(const char *what) { (void)what; }
int link_take_fd(void)
{
    bool had = fd_waiting;
    fd_waiting = false;
    return had ? dup(sink_fd) : -1;
}
void link_lost(void) {}

static void free_vectors(struct vectors *v)
{
    free(v->argv);
    free(v->envp);
}

void execution_start(struct stream *s, const uint8_t *payload, size_t length, int cgroup_fd)
{
    struct start_request r;
    struct vectors v;

    if (cgroup_fd >= 0)
        close(cgroup_fd);
    if (start_decode(&r, payload, length) != NULL) {
        stream_fail(s, "protocol", 22, "bad");
        return;
    }
    if (!vectors_build(&v, &r, 4))
        abort();
    size_t total = 0;
    for (char **p = v.argv; *p; p++)
        total += strlen(*p);
    for (char **p = v.envp; *p; p++)
        if (strchr(*p, '=') == NULL)
            abort();
    if (total > length)
        abort();
    free_vectors(&v);
    if (!stream_map(s, 2, r.flags & START_STDIN ? WINDOW_BYTES : 0))
        abort();
    s->pid = s->session = 1000;
    s->phase = PHASE_RUNNING;
    s->terminal = r.columns > 0;
    if (s->terminal && (r.columns > 65535 || r.rows == 0 || r.rows > 65535))
        abort();
    if (r.flags & START_STDIN) {
        s->in.fd = dup(sink_fd);
        s->in.ready = r.envc & 1;
    }
    for (int i = 0; i < 2; i++) {   /* output to acknowledge */
        s->out[i].tail = length & (WINDOW_BYTES - 1);
        s->out[i].eof = length & 1;
    }
    if (length & 2) {
        s->pid = 0;
        s->out[0].eof = s->out[1].eof = true;
        stream_finish(s, T_EXIT, (const uint8_t *)"", 0);
    }
}
void execution_abort(struct stream *s) { s->pid = 0; }
void operation_start(struct stream *s, const uint8_t *payload, size_t length)
{
    struct file_request r;

    if (file_decode(&r, payload, length) != NULL) {
        stream_fail(s, "protocol", 22, "bad");
        return;
    }
    if (r.path.data != NULL && (r.path.length > PATH_BYTES_MAX || memchr(r.path.data, 0, r.path.length)))
        abort();
    if (!stream_map(s, 0, FILE_WINDOW_BYTES))
        abort();
    s->in.fd = dup(sink_fd);
    s->operation = (uint8_t)r.operation;
    s->phase = PHASE_RUNNING;
    s->has_output = r.operation == OP_READ;
}
void operation_abort(struct stream *s, int64_t now) { (void)now; stream_fail(s, "aborted", 4, "aborted"); }
void dial_start(struct stream *s, const uint8_t *payload, size_t length)
{
    if (dial_decode(&s->port, payload, length) != NULL) {
        stream_fail(s, "protocol", 22, "bad");
        return;
    }
    if (s->port == 0 || !stream_map(s, 0, WINDOW_BYTES))
        abort();
    s->in.fd = dup(sink_fd);
    s->in.ready = s->port & 1;
    s->phase = s->port & 2 ? PHASE_STARTING : PHASE_RUNNING;
    s->out[0].eof = s->port & 4;
}
void dial_abort(struct stream *s) { stream_fail(s, "aborted", 103, "aborted"); }
void tree_signal(const struct stream *s, int number)
{
    if (number < 1 || number > 64 || s->kind != KIND_EXECUTION)
        abort();
}
void report_failure(int fd, const char *stage, int error, const char *message)
{
    (void)fd, (void)stage, (void)error, (void)message;
    abort();
}
void report_send(int fd, enum report_kind kind, const uint8_t *payload, size_t length)
{
    (void)fd, (void)kind, (void)payload, (void)length;
}
bool process_cgroup(pid_t pid, char *line, size_t size) { (void)pid, (void)line, (void)size; return false; }

static void pump(void)
{
    for (unsigned i = 0; i < stream_high; i++) {
        struct stream *s = &streams[i];
        if (s->kind == KIND_FREE)
            continue;
        sink_drain(&s->in);
        stream_emit(s);
        if (s->in.consumed > s->in.received || s->in.received - s->in.consumed > WINDOW_BYTES * 4)
            abort();
    }
    agent.link.out.start = agent.link.out.end;   /* all sent */
}

static void reset(void)
{
    for (unsigned i = STREAM_SLOTS; i-- > 0;)
        if (streams[i].kind != KIND_FREE) {
            streams[i].pid = 0;
            stream_free(&streams[i]);
        }
    stream_high = 0;
    agent.link.in.start = agent.link.in.end = 0;
    agent.link.out.start = agent.link.out.end = 0;
    agent.link.state = LINK_GREETING;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (agent.link.in.data == NULL) {
        agent.link.in.data = malloc(INBUF_SIZE + 1);
        agent.link.out.data = malloc(OUTBUF_SIZE);
        sink_fd = open("/dev/null", O_WRONLY);
    }
    reset();
    if (size == 0)
        return 0;
    size_t step = data[0] & 0x7f ? (size_t)(data[0] & 0x7f) * 7 : 1u << 20;
    if (data[0] & 0x80)
        agent.link.state = LINK_UP;
    data++, size--;
    while (size > 0) {
        size_t room, part;
        uint8_t *space = inbuf_space(&agent.link.in, &room);
        if (room == 0)
            abort();
        part = size < step ? size : step;
        part = part < room ? part : room;
        memcpy(space, data, part);
        agent.link.in.end += part;
        data += part, size -= part;
        fd_waiting = true;
        struct frame frame;
        enum frame_status status;
        while ((status = inbuf_next(&agent.link.in, &frame)) == FRAME_READY)
            if (!dispatch(&frame))
                goto out;
        if (status == FRAME_BAD)
            break;
        pump();
    }
    for (unsigned i = 0; i < stream_high; i++)
        if (streams[i].kind != KIND_FREE)
            stream_rewind(&streams[i]);
    pump();
out:
    reset();
    return 0;
}
