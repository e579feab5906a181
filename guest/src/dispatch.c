/* What each frame from the node means. Frames for streams that are gone are ignored: they crossed on the wire. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

static bool on_welcome(const struct frame *frame)
{
    struct tlv_reader reader;
    struct tlv t;
    uint64_t protocol = 0;

    tlv_open(&reader, frame->payload, frame->length);
    while (tlv_next(&reader, &t))
        if (t.tag == 1 && !tlv_u64(&t, &protocol))
            return false;
    if (reader.bad || protocol != PROTOCOL_VERSION)
        return false;
    agent.link.state = LINK_UP;
    agent.link.backoff_ms = 0;
    return true;
}

static size_t assembling_bytes(void)
{
    size_t sum = 0;

    for (unsigned i = 0; i < stream_high; i++)
        if (streams[i].kind != KIND_FREE && streams[i].phase == PHASE_ASSEMBLING)
            sum += streams[i].assembly_length;
    return sum;
}

static bool refuse_start(struct stream *s, int error, const char *message)
{
    free(s->assembly);   /* at once: a FAILED may wait for its RELEASE for long */
    s->assembly = NULL;
    stream_fail(s, "limit", error, message);
    return false;
}

/* Put one part of a START behind what is there; false when a limit is hit (the stream then holds its FAILED). */
static bool assemble(struct stream *s, const struct frame *frame)
{
    if (s->assembly_length + frame->length > START_MAX)
        return refuse_start(s, E2BIG, "START is longer than 2 MiB");
    if (assembling_bytes() + frame->length > ASSEMBLING_MAX)
        return refuse_start(s, 0, "too many long STARTs at once");
    /* one byte more than it holds: the child puts a NUL behind the last value */
    uint8_t *grown = realloc(s->assembly, s->assembly_length + frame->length + 1);
    if (grown == NULL)
        return refuse_start(s, ENOMEM, "no memory for START");
    memcpy(grown + s->assembly_length, frame->payload, frame->length);
    s->assembly = grown;
    s->assembly_length += frame->length;
    return true;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

static bool on_start(const struct frame *frame)
{
    struct stream *s = stream_find(frame->stream);
    int fd = frame->flags & FLAG_FD ? link_take_fd() : -1;
    bool more = frame->flags & FLAG_MORE;
    bool refuse = false;

    if (s != NULL && (s->phase != PHASE_ASSEMBLING || s->kind != KIND_EXECUTION)) {
        close_fd(fd);   /* known already, or refused and its further parts are still coming */
        return true;
    }
    if (s == NULL) {
        s = stream_new(frame->stream, KIND_EXECUTION, &refuse);
        if (s == NULL) {
            close_fd(fd);
            return false;
        }
        if (refuse) {
            close_fd(fd);
            stream_fail(s, "limit", 0, "too many streams at once");
            return true;
        }
        if ((frame->flags & FLAG_FD) && fd < 0) {
            stream_fail(s, "protocol", 0, "no descriptor came with this frame");
            return true;
        }
        s->cgroup_fd = fd;
        fd = -1;
    }
    close_fd(fd);
    if (!more && s->assembly == NULL) {
        fd = s->cgroup_fd;
        s->cgroup_fd = -1;
        execution_start(s, frame->payload, frame->length, fd);
        return true;
    }
    if (!assemble(s, frame) || more)
        return true;
    fd = s->cgroup_fd;
    s->cgroup_fd = -1;
    execution_start(s, s->assembly, s->assembly_length, fd);
    free(s->assembly);
    s->assembly = NULL;
    return true;
}

static bool on_file(const struct frame *frame)
{
    bool refuse = false;

    if (stream_find(frame->stream) != NULL)
        return true;
    struct stream *s = stream_new(frame->stream, KIND_FILE, &refuse);
    if (s == NULL)
        return false;
    if (refuse)
        stream_fail(s, "limit", 0, "too many streams at once");
    else
        operation_start(s, frame->payload, frame->length);
    return true;
}

static bool on_dial(const struct frame *frame)
{
    bool refuse = false;

    if (stream_find(frame->stream) != NULL)
        return true;
    struct stream *s = stream_new(frame->stream, KIND_DIAL, &refuse);
    if (s == NULL)
        return false;
    if (refuse)
        stream_fail(s, "limit", 0, "too many connections at once");
    else
        dial_start(s, frame->payload, frame->length);
    return true;
}

static bool on_data(struct stream *s, const struct frame *frame)
{
    if (frame->length <= DATA_PREFIX || frame->channel != 0)
        return false;
    if (s->phase == PHASE_ASSEMBLING)
        return false;
    if (s->final_type == T_FAILED)
        return true;
    if (s->kind == KIND_DIAL && s->phase == PHASE_STARTING)
        return false;
    return sink_take(&s->in, get64(frame->payload), frame->payload + DATA_PREFIX, frame->length - DATA_PREFIX);
}

static bool on_eof(struct stream *s, const struct frame *frame)
{
    if (frame->length != DATA_PREFIX || frame->channel != 0)
        return false;
    if (s->final_type == T_FAILED)
        return true;
    if (get64(frame->payload) != s->in.received)
        return get64(frame->payload) < s->in.received && s->in.eof;
    s->in.eof = true;
    return true;
}

static bool on_ack(struct stream *s, const struct frame *frame)
{
    if (frame->length != DATA_PREFIX || frame->channel < 1 || frame->channel > 2)
        return false;
    struct source *o = &s->out[frame->channel - 1];
    uint64_t offset = get64(frame->payload);
    if (offset > o->sent)
        return false;
    if (offset > o->acked)
        o->acked = offset;
    return true;
}

static void on_release(struct stream *s)
{
    if (s->pid == 0) {
        if (s->kind == KIND_DIAL)
            dial_abort(s);
        stream_free(s);
        return;
    }
    s->orphan = true;   /* nobody can ever ask for it again: it must not go on */
    if (s->kind == KIND_FILE) {
        operation_abort(s, now_ms());
    } else {
        execution_abort(s);
        tree_signal(s, 9);
        stream_close(s);
    }
}

static bool on_stream_frame(struct stream *s, const struct frame *frame)
{
    struct signal_request request;
    uint64_t columns, rows;

    switch (frame->type) {
    case T_DATA: return on_data(s, frame);
    case T_ACK: return on_ack(s, frame);
    case T_EOF: return on_eof(s, frame);
    case T_SIGNAL:
        if (signal_decode(&request, frame->payload, frame->length) != NULL)
            return false;
        if (s->kind != KIND_EXECUTION)
            return true;
        if (request.scope == 0)
            tree_signal(s, (int)request.number);
        else if (s->pid > 0)
            kill(s->pid, (int)request.number);
        return true;
    case T_RESIZE:
        if (resize_decode(&columns, &rows, frame->payload, frame->length) != NULL)
            return false;
        if (s->terminal)
            terminal_resize(s, columns, rows);
        return true;
    case T_ABORT:
        if (s->phase == PHASE_ASSEMBLING)
            stream_fail(s, "aborted", 0, "aborted");
        else if (s->kind == KIND_FILE)
            operation_abort(s, now_ms());
        else if (s->kind == KIND_DIAL)
            dial_abort(s);
        else
            execution_abort(s);
        return true;
    case T_RELEASE:
        on_release(s);
        return true;
    default:
        return true;
    }
}

bool dispatch(const struct frame *frame)
{
    struct link *link = &agent.link;

    if (link->state == LINK_GREETING)
        return frame->type == T_WELCOME && on_welcome(frame);
    if (frame->type == T_PING) {
        if (frame->length > sizeof link->ping)
            return false;
        memcpy(link->ping, frame->payload, frame->length);
        link->ping_length = frame->length;
        link->pong_due = true;
        return true;
    }
    if (frame->type == T_START)
        return frame->stream != 0 && on_start(frame);
    if (frame->type == T_FILE)
        return frame->stream != 0 && on_file(frame);
    if (frame->type == T_DIAL)
        return frame->stream != 0 && on_dial(frame);
    struct stream *s = stream_find(frame->stream);
    return s == NULL || on_stream_frame(s, frame);
}
