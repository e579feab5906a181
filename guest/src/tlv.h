/* TLV payloads: `tag u16, length u32, value`, read in place and written into a caller's buffer. */
#ifndef BELLGLASS_TLV_H
#define BELLGLASS_TLV_H

#include "wire.h"

#define TLV_HEADER 6u

struct tlv_reader { const uint8_t *at, *end; bool bad; };
struct tlv { uint16_t tag; uint32_t length; const uint8_t *value; };

void tlv_open(struct tlv_reader *r, const uint8_t *data, size_t length);
/* False at the end; `bad` is set when the bytes end inside of an element. */
bool tlv_next(struct tlv_reader *r, struct tlv *t);
/* A number is exactly 8 bytes. */
bool tlv_u64(const struct tlv *t, uint64_t *value);
/* A string holds no NUL and at most `max` bytes. */
bool tlv_string(const struct tlv *t, size_t max);

/* Writes what fits; `overflow` says that something did not, and then nothing of that element is there. */
struct tlv_writer { uint8_t *data; size_t size, used; bool overflow; };

void tlv_put(struct tlv_writer *w, uint16_t tag, const void *value, size_t length);
void tlv_put_u64(struct tlv_writer *w, uint16_t tag, uint64_t value);
void tlv_put_string(struct tlv_writer *w, uint16_t tag, const char *value);

/* The payload of FAILED: stage, errno, message. Returns its length. */
size_t tlv_failed(uint8_t *buffer, size_t size, const char *stage, int error, const char *message);

#endif
