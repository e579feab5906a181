/* See stream.h. */
#include "stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent.h"

struct stream streams[STREAM_SLOTS];
unsigned stream_high;

struct stream *stream_find(uint32_t id)
{
    for (unsigned i = 0; i < stream_high; i++)
        if (streams[i].kind != KIND_FREE && streams[i].id == id && !streams[i].orphan)
            return &streams[i];
    return NULL;
}

struct stream *stream_new(uint32_t id, enum stream_kind kind, bool *refuse)
{
    struct stream *s = NULL;
    unsigned used = 0, most = kind == KIND_DIAL ? DIALS_MAX : STREAMS_MAX;

    for (unsigned i = 0; i < STREAM_SLOTS; i++) {
        if (streams[i].kind == KIND_FREE)
            s = s == NULL ? &streams[i] : s;
        else if ((streams[i].kind == KIND_DIAL) == (kind == KIND_DIAL))
            used++;
        if (i >= stream_high)
            break;
    }
    if (s == NULL)
        return NULL;
    *refuse = used >= most;
    if (s >= streams + stream_high)
        stream_high = (unsigned)(s - streams) + 1;
    *s = (struct stream){ .id = id, .kind = (uint8_t)kind, .report_fd = -1, .cgroup_fd = -1,
                          .out = { { .fd = -1 }, { .fd = -1 } }, .in = { .fd = -1 } };
    return s;
}

bool stream_map(struct stream *s, unsigned sources, uint32_t sink_window)
{
    s->in.window = sink_window;
    s->rings_size = (size_t)sources * WINDOW_BYTES + sink_window;
    if (s->rings_size == 0)
        return true;
    void *memory = mmap(NULL, s->rings_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        s->rings_size = 0;
        return false;
    }
    s->rings = memory;
    for (unsigned i = 0; i < sources; i++)
        s->out[i].ring = s->rings + (size_t)i * WINDOW_BYTES;
    if (sink_window > 0)
        s->in.ring = s->rings + (size_t)sources * WINDOW_BYTES;
    return true;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void source_close(struct source *o) { close_fd(&o->fd); }

void sink_close(struct sink *in) { close_fd(&in->fd); }

void stream_close(struct stream *s)
{
    source_close(&s->out[0]);
    source_close(&s->out[1]);
    sink_close(&s->in);
    close_fd(&s->report_fd);
    close_fd(&s->cgroup_fd);
    if (s->rings != NULL)
        munmap(s->rings, s->rings_size);
    s->rings = s->out[0].ring = s->out[1].ring = s->in.ring = NULL;
    free(s->assembly);
    free(s->final);
    s->assembly = s->final = NULL;
}

void stream_free(struct stream *s)
{
    stream_close(s);
    s->kind = KIND_FREE;
    while (stream_high > 0 && streams[stream_high - 1].kind == KIND_FREE)
        stream_high--;
}

void stream_finish(struct stream *s, uint8_t type, const uint8_t *payload, size_t length)
{
    if (s->final_type != 0)
        return;
    s->final = malloc(length ? length : 1);
    if (s->final == NULL)
        length = 0;   /* the type alone still tells the node that it is over */
    else if (length > 0)
        memcpy(s->final, payload, length);
    s->final_type = type;
    s->final_length = length;
    s->phase = PHASE_FINAL;
}

void stream_fail(struct stream *s, const char *stage, int error, const char *message)
{
    uint8_t payload[256];

    stream_finish(s, T_FAILED, payload, tlv_failed(payload, sizeof payload, stage, error, message));
}

void stream_rewind(struct stream *s)
{
    s->started_sent = s->final_sent = false;
    s->in.ack_sent = 0;
    for (int i = 0; i < 2; i++) {
        s->out[i].sent = s->out[i].acked;
        s->out[i].eof_sent = false;
    }
}

bool source_fill(struct source *o, int64_t now)
{
    if (o->fd < 0 || !o->ready)
        return false;
    size_t room = WINDOW_BYTES - (size_t)(o->tail - o->acked);
    if (room == 0) {
        o->empty_at_ms = 0;
        return false;
    }
    size_t at = (size_t)(o->tail & (WINDOW_BYTES - 1));
    size_t first = room < WINDOW_BYTES - at ? room : WINDOW_BYTES - at;
    struct iovec parts[2] = { { o->ring + at, first }, { o->ring, room - first } };
    ssize_t n = readv(o->fd, parts, room > first ? 2 : 1);
    if (n > 0) {
        o->tail += (uint64_t)n;
        o->empty_at_ms = 0;
        return true;
    }
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && (errno == EAGAIN || (errno == EIO && o->may_reopen))) {
        o->ready = false;
        o->empty_at_ms = now;
        return false;
    }
    source_close(o);   /* EIO is how a terminal's master tells the end */
    o->eof = true;
    return true;
}

bool sink_take(struct sink *in, uint64_t offset, const uint8_t *data, size_t length)
{
    if (offset > in->received || offset + length < offset)
        return false;
    if (offset + length <= in->received)
        return true;   /* sent again after a new link, and already here */
    data += in->received - offset;
    length -= (size_t)(in->received - offset);
    if (in->eof || in->received - in->consumed + length > in->window)
        return false;
    if (in->fd < 0) {  /* nobody reads any more: taken and dropped, so that the sender is not stuck */
        in->received += length;
        in->consumed = in->received;
        return true;
    }
    while (in->consumed == in->received && in->ready && length > 0) {
        ssize_t n = write(in->fd, data, length);
        if (n >= 0) {
            in->received += (uint64_t)n;
            in->consumed = in->received;
            data += n;
            length -= (size_t)n;
        } else if (errno == EAGAIN) {
            in->ready = false;
        } else if (errno != EINTR) {
            in->error = errno;
            sink_close(in);
            in->received += length;
            in->consumed = in->received;
            return true;
        }
    }
    while (length > 0) {
        size_t at = (size_t)(in->received & (in->window - 1));
        size_t part = length < in->window - at ? length : in->window - at;
        memcpy(in->ring + at, data, part);
        in->received += part;
        data += part;
        length -= part;
    }
    return true;
}

bool sink_drain(struct sink *in)
{
    bool changed = false;

    while (in->consumed < in->received && (in->fd < 0 || in->ready)) {
        size_t at = (size_t)(in->consumed & (in->window - 1));
        size_t held = (size_t)(in->received - in->consumed);
        size_t part = held < in->window - at ? held : in->window - at;
        ssize_t n = in->fd < 0 ? (ssize_t)part : write(in->fd, in->ring + at, part);
        if (n >= 0) {
            in->consumed += (uint64_t)n;
            changed = true;
        } else if (errno == EAGAIN) {
            in->ready = false;
        } else if (errno != EINTR) {
            in->error = errno;
            sink_close(in);
        }
    }
    return changed;
}
