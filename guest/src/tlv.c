/* See tlv.h. */
#include "tlv.h"

#include <string.h>

void tlv_open(struct tlv_reader *r, const uint8_t *data, size_t length)
{
    r->at = data;
    r->end = data + length;
    r->bad = false;
}

bool tlv_next(struct tlv_reader *r, struct tlv *t)
{
    size_t left = (size_t)(r->end - r->at);

    if (left == 0)
        return false;
    if (left < TLV_HEADER || get32(r->at + 2) > left - TLV_HEADER) {
        r->bad = true;
        return false;
    }
    t->tag = get16(r->at);
    t->length = get32(r->at + 2);
    t->value = r->at + TLV_HEADER;
    r->at = t->value + t->length;
    return true;
}

bool tlv_u64(const struct tlv *t, uint64_t *value)
{
    if (t->length != 8)
        return false;
    *value = get64(t->value);
    return true;
}

bool tlv_string(const struct tlv *t, size_t max)
{
    return t->length <= max && (t->length == 0 || memchr(t->value, 0, t->length) == NULL);
}

void tlv_put(struct tlv_writer *w, uint16_t tag, const void *value, size_t length)
{
    if (w->overflow || w->size - w->used < TLV_HEADER || w->size - w->used - TLV_HEADER < length) {
        w->overflow = true;
        return;
    }
    uint8_t *p = w->data + w->used;
    put16(p, tag);
    put32(p + 2, (uint32_t)length);
    if (length > 0)
        memcpy(p + TLV_HEADER, value, length);
    w->used += TLV_HEADER + length;
}

void tlv_put_u64(struct tlv_writer *w, uint16_t tag, uint64_t value)
{
    uint8_t bytes[8];

    put64(bytes, value);
    tlv_put(w, tag, bytes, sizeof bytes);
}

void tlv_put_string(struct tlv_writer *w, uint16_t tag, const char *value)
{
    tlv_put(w, tag, value, strlen(value));
}

size_t tlv_failed(uint8_t *buffer, size_t size, const char *stage, int error, const char *message)
{
    struct tlv_writer w = { .data = buffer, .size = size };

    tlv_put_string(&w, 1, stage);
    tlv_put_u64(&w, 2, (uint64_t)error);
    tlv_put_string(&w, 3, message);
    return w.used;
}
