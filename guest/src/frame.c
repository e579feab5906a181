/* See frame.h. Every length is the peer's word: it is checked against the maximum before anything is added to it. */
#include "frame.h"

#include <string.h>

uint8_t *inbuf_space(struct inbuf *in, size_t *room)
{
    size_t held = in->end - in->start;
    size_t need = FRAME_HEADER;

    if (held == 0)
        in->start = in->end = 0;
    if (held >= FRAME_HEADER) {
        uint32_t length = get32(in->data + in->start);
        if (length <= FRAME_MAX)
            need = FRAME_HEADER + length;
    }
    if (in->start > 0 && INBUF_SIZE - in->start < need) {
        memmove(in->data, in->data + in->start, held);
        in->start = 0;
        in->end = held;
    }
    *room = INBUF_SIZE - in->end;
    return in->data + in->end;
}

enum frame_status inbuf_next(struct inbuf *in, struct frame *frame)
{
    size_t held = in->end - in->start;
    const uint8_t *p = in->data + in->start;

    if (in->end > in->high)
        in->high = in->end;
    if (held < FRAME_HEADER)
        return FRAME_NONE;
    uint32_t length = get32(p);
    if (length > FRAME_MAX)
        return FRAME_BAD;
    if (held < FRAME_HEADER + length)
        return FRAME_NONE;
    frame->type = p[4];
    frame->channel = p[5];
    frame->flags = get16(p + 6);
    frame->stream = get32(p + 8);
    frame->payload = p + FRAME_HEADER;
    frame->length = length;
    in->start += FRAME_HEADER + length;
    return FRAME_READY;
}

size_t outbuf_pending(const struct outbuf *out) { return out->end - out->start; }

uint8_t *outbuf_reserve(struct outbuf *out, size_t length)
{
    size_t need = FRAME_HEADER + length;

    if (out->start == out->end)
        out->start = out->end = 0;
    if (OUTBUF_SIZE - out->end < need) {
        size_t held = out->end - out->start;
        if (OUTBUF_SIZE - held < need)
            return NULL;
        memmove(out->data, out->data + out->start, held);
        out->start = 0;
        out->end = held;
    }
    return out->data + out->end + FRAME_HEADER;
}

void outbuf_commit(struct outbuf *out, uint8_t type, uint8_t channel, uint32_t stream, size_t length)
{
    uint8_t *p = out->data + out->end;

    put32(p, (uint32_t)length);
    p[4] = type;
    p[5] = channel;
    put16(p + 6, 0);
    put32(p + 8, stream);
    out->end += FRAME_HEADER + length;
    if (out->end > out->high)
        out->high = out->end;
}
