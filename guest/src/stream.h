/* One stream: an execution, a file operation or a connection to a port, with its pipes, windows and outcome.
 *
 * The table is fixed, so the most that a peer can make the agent hold is known. Pipes are edge-triggered: `ready` is
 * set by an event and cleared by EAGAIN only, so a pipe that is not read (its window is full) costs no wake-ups.
 */
#ifndef BELLGLASS_STREAM_H
#define BELLGLASS_STREAM_H

#include <sys/types.h>

#include "request.h"

#define FILE_WINDOW_BYTES (1u << 20)
#define STREAM_SLOTS (STREAMS_MAX + DIALS_MAX + REFUSALS_MAX)
#define CGROUP_LINE_MAX 512
#define DRAIN_MS 200

enum stream_kind { KIND_FREE, KIND_EXECUTION, KIND_FILE, KIND_DIAL };
enum stream_phase {
    PHASE_ASSEMBLING,   /* parts of START come in */
    PHASE_STARTING,     /* forked; the report channel is not at its end */
    PHASE_RUNNING,
    PHASE_EXITED,       /* reaped; pipes may still hold output */
    PHASE_FINAL,        /* EXIT, FAILED or RESULT is known */
};

/* Output: a pipe of the program, and the bytes that the node has not acknowledged (executions only). */
struct source {
    int fd;
    bool ready, eof, eof_sent;
    uint64_t acked, sent, tail;
    uint8_t *ring;
    bool may_reopen;       /* a terminal whose last user is gone: another of the session may open it again */
    int64_t empty_at_ms;   /* when the pipe was last found empty; 0: it is not known to be */
};

/* Input: bytes that the pipe has not taken yet. */
struct sink {
    int fd;
    bool ready, eof;
    int error;             /* why the other side takes no more, once that is so */
    uint32_t window;
    uint64_t received, consumed, ack_sent;
    uint8_t *ring;
};

struct stream {
    uint32_t id;
    uint8_t kind, phase, operation;
    bool orphan;           /* the node knows it no more; it goes when its process has */
    bool started_sent, final_sent, aborting;
    bool has_output;       /* a file operation that sends bytes on channel 1 */
    bool complete;         /* the worker has said that all of them are in the pipe */
    pid_t pid;             /* 0: none, or reaped */
    pid_t session;         /* the first process's id, kept after it is gone */
    int report_fd;
    bool report_ready;
    int cgroup_fd;         /* while parts of START come in */
    struct source out[2];
    struct sink in;
    uint8_t *rings;
    size_t rings_size;
    char cgroup[CGROUP_LINE_MAX];
    uint8_t *assembly;
    size_t assembly_length;
    uint8_t exit[80], exit_length;
    int64_t exited_at_ms;
    uint8_t final_type;
    uint8_t *final;
    size_t final_length;
    int64_t kill_at_ms;    /* an aborted worker is killed then; 0: not set */
    uint16_t port;         /* of a dial */
    bool terminal;         /* of an execution: both directions are descriptors of the terminal's master */
    bool second_address;   /* of a dial: 127.0.0.1 has failed, this is ::1 */
};

extern struct stream streams[STREAM_SLOTS];
extern unsigned stream_high;   /* slots at and above were never used */

struct stream *stream_find(uint32_t id);
/* NULL when even the slots for refusals are taken. `refuse` is set when there is only room for a FAILED. */
struct stream *stream_new(uint32_t id, enum stream_kind kind, bool *refuse);
/* Map the rings; false when out of memory. */
bool stream_map(struct stream *s, unsigned sources, uint32_t sink_window);
/* Close what the node's side of the stream holds, keep the process. */
void stream_close(struct stream *s);
void stream_free(struct stream *s);
void stream_fail(struct stream *s, const char *stage, int error, const char *message);
void stream_finish(struct stream *s, uint8_t type, const uint8_t *payload, size_t length);
/* Start again on a new link: everything unacknowledged is due. */
void stream_rewind(struct stream *s);

/* One read of at most the free window. True if something changed. */
bool source_fill(struct source *o, int64_t now_ms);
void source_close(struct source *o);
/* Take bytes at `offset`; false if the peer broke the window or left a gap. */
bool sink_take(struct sink *in, uint64_t offset, const uint8_t *data, size_t length);
/* Move held bytes into the pipe. True if something changed. */
bool sink_drain(struct sink *in);
void sink_close(struct sink *in);

/* Send what is due into the link's buffer. True if something was. */
bool stream_emit(struct stream *s);

#endif
