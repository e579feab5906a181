/* The guest protocol's numbers and the little-endian helpers. docs/reference/guest-protocol.md is the text of it. */
#ifndef BELLGLASS_WIRE_H
#define BELLGLASS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_VERSION 1u
#define FEATURE_FD_PASSING 1u
#define FEATURE_FILES 2u
#define FEATURE_ARCHIVES 4u
#define FEATURE_INPUT_OFFSETS 8u
#define FEATURE_DIAL 16u
#define FEATURE_TERMINAL 32u
#define FEATURE_ATTRIBUTES 64u  /* and FILE's owner and depth */
#define FEATURE_WATCH 128u

#define FRAME_HEADER 12u
#define DATA_PREFIX 8u
#define DATA_MAX 262144u
#define FRAME_MAX (DATA_MAX + 64u)
#define WINDOW_BYTES 262144u    /* power of two: rings are indexed by offset */
#define START_MAX (2u << 20)    /* a START joined from its parts */
#define ASSEMBLING_MAX (8u << 20)
#define STREAMS_MAX 256         /* executions and file operations */
#define DIALS_MAX 128           /* connections to ports: they never take the others' places */
#define REFUSALS_MAX 64         /* slots for requests beyond STREAMS_MAX, so that each gets its FAILED */

enum frame_type {
    T_HELLO = 1, T_WELCOME = 2, T_PING = 3, T_PONG = 4,
    T_START = 16, T_STARTED = 17, T_DATA = 18, T_ACK = 19, T_EOF = 20, T_SIGNAL = 21,
    T_EXIT = 22, T_FAILED = 23, T_RELEASE = 24, T_ABORT = 25, T_RESIZE = 26,
    T_FILE = 32, T_RESULT = 33,
    T_DIAL = 34, T_CONNECTED = 35,
};

#define FLAG_FD 1u
#define FLAG_MORE 2u

static inline uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t get64(const uint8_t *p) { return get32(p) | (uint64_t)get32(p + 4) << 32; }
static inline void put16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)v; p[1] = (uint8_t)(v >> 8); }
static inline void put32(uint8_t *p, uint32_t v) { put16(p, (uint16_t)v); put16(p + 2, (uint16_t)(v >> 16)); }
static inline void put64(uint8_t *p, uint64_t v) { put32(p, (uint32_t)v); put32(p + 4, (uint32_t)(v >> 32)); }

#endif
