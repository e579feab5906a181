/* What a stream owes the node, in the order that the protocol promises, as far as the link's buffer has room. */
#include <string.h>
#include <unistd.h>

#include "agent.h"

static bool emit_offset(struct stream *s, uint8_t type, uint8_t channel, uint64_t offset)
{
    uint8_t *p = outbuf_reserve(&agent.link.out, DATA_PREFIX);

    if (p == NULL)
        return false;
    put64(p, offset);
    outbuf_commit(&agent.link.out, type, channel, s->id, DATA_PREFIX);
    return true;
}

static bool emit_started(struct stream *s)
{
    uint8_t *p = outbuf_reserve(&agent.link.out, TLV_HEADER + 8);

    if (p == NULL)
        return false;
    struct tlv_writer w = { .data = p, .size = TLV_HEADER + 8 };
    tlv_put_u64(&w, 1, (uint64_t)s->session);
    outbuf_commit(&agent.link.out, T_STARTED, 0, s->id, w.used);
    s->started_sent = true;
    return true;
}

static bool emit_final(struct stream *s)
{
    uint8_t *p = outbuf_reserve(&agent.link.out, s->final_length);

    if (p == NULL)
        return false;
    if (s->final_length > 0)
        memcpy(p, s->final, s->final_length);
    outbuf_commit(&agent.link.out, s->final_type, 0, s->id, s->final_length);
    s->final_sent = true;
    return true;
}

static bool emit_ring(struct stream *s, struct source *o, uint8_t channel)
{
    if (o->sent == o->tail || outbuf_pending(&agent.link.out) >= OUTBUF_DATA_MARK)
        return false;
    size_t length = (size_t)(o->tail - o->sent);
    if (length > DATA_MAX)
        length = DATA_MAX;
    uint8_t *p = outbuf_reserve(&agent.link.out, DATA_PREFIX + length);
    if (p == NULL)
        return false;
    size_t at = (size_t)(o->sent & (WINDOW_BYTES - 1));
    size_t first = length < WINDOW_BYTES - at ? length : WINDOW_BYTES - at;
    put64(p, o->sent);
    memcpy(p + DATA_PREFIX, o->ring + at, first);
    memcpy(p + DATA_PREFIX + first, o->ring, length - first);
    outbuf_commit(&agent.link.out, T_DATA, channel, s->id, DATA_PREFIX + length);
    o->sent += length;
    return true;
}

bool stream_emit(struct stream *s)
{
    bool done = false;

    if (s->orphan || agent.link.state != LINK_UP)
        return false;
    if (s->kind == KIND_EXECUTION && !s->started_sent && s->session != 0 && s->final_type != T_FAILED
        && s->phase >= PHASE_RUNNING)
        done |= emit_started(s);
    if (s->kind == KIND_EXECUTION && !s->started_sent && s->final_type != T_FAILED)
        return done;
    if (s->in.consumed > s->in.ack_sent && emit_offset(s, T_ACK, 0, s->in.consumed)) {
        s->in.ack_sent = s->in.consumed;
        done = true;
    }
    bool drained = true;
    for (int i = 0; i < 2; i++) {
        struct source *o = &s->out[i];
        if (o->ring != NULL)
            done |= emit_ring(s, o, (uint8_t)(i + 1));
        if (o->eof && !o->eof_sent && o->sent == o->tail && emit_offset(s, T_EOF, (uint8_t)(i + 1), o->tail)) {
            o->eof_sent = true;
            done = true;
        }
        if (o->eof && !o->eof_sent)
            drained = false;
    }
    if (s->has_output && s->operation != OP_READ && !s->out[0].eof_sent)
        drained = false;   /* a read's RESULT goes before its bytes, any other's after them */
    if (s->final_type != 0 && !s->final_sent && (drained || s->final_type == T_FAILED))
        done |= emit_final(s);
    return done;
}
