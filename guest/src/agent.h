/* What the parts of the agent share: the link, the loop's descriptors, and the seams between files. */
#ifndef BELLGLASS_AGENT_H
#define BELLGLASS_AGENT_H

#include <sys/resource.h>

#include "frame.h"
#include "stream.h"

#ifndef AGENT_VERSION
#define AGENT_VERSION "0.1.0"
#endif

enum link_state { LINK_DOWN, LINK_GREETING, LINK_UP };
#define LINK_FDS_MAX 32

struct link {
    int fd;
    enum link_state state;
    bool readable, writable;
    struct inbuf in;
    struct outbuf out;
    int fds[LINK_FDS_MAX];
    unsigned fd_count;
    int64_t retry_at_ms;
    int backoff_ms;
    uint64_t epoch;
    uint8_t ping[64];
    size_t ping_length;
    bool pong_due;
};

struct agent {
    const char *socket_path;
    int epoll_fd, signal_fd, null_fd;
    bool init;                     /* PID 1 of its namespace */
    uint8_t boot_id[16];
    struct rlimit files;           /* as it was at start: what programs get */
    struct link link;
};

extern struct agent agent;

int64_t now_ms(void);
/* Register for edges. `what` tells the stream's pipes apart. */
enum watch_what { WATCH_REPORT, WATCH_STDIN, WATCH_OUT0, WATCH_OUT1, WATCH_SOCKET, WATCH_LINK, WATCH_SIGNAL };
bool watch(int fd, uint32_t events, const struct stream *s, enum watch_what what);
void warn(const char *what);

/* link.c */
void link_dial(void);
void link_lost(void);
/* Read and dispatch a bounded amount; true if more may wait. */
bool link_read(void);
bool link_flush(void);
bool link_emit(void);
int link_take_fd(void);

/* dispatch.c */
/* False: the peer broke the protocol, the link has to go. */
bool dispatch(const struct frame *frame);

/* execution.c */
void execution_start(struct stream *s, const uint8_t *payload, size_t length, int cgroup_fd);
bool execution_pump(struct stream *s, int64_t now);
void execution_reaped(struct stream *s, int status, const struct rusage *usage);
void execution_abort(struct stream *s);

/* terminal.c */
/* A pair of descriptors: the agent's side, and the program's. 0 or an errno. */
int terminal_open(int *master, int *slave, uint64_t columns, uint64_t rows);
void terminal_resize(const struct stream *s, uint64_t columns, uint64_t rows);
/* In the child, after setsid: descriptor 0 becomes its controlling terminal and belongs to `uid`. 0 or an errno. */
int terminal_take(uid_t uid);

/* operation.c */
void operation_start(struct stream *s, const uint8_t *payload, size_t length);
bool operation_pump(struct stream *s, int64_t now);
void operation_reaped(struct stream *s, int status);
void operation_abort(struct stream *s, int64_t now);
void operation_commit(struct stream *s);

/* dial.c */
void dial_start(struct stream *s, const uint8_t *payload, size_t length);
bool dial_pump(struct stream *s);
/* Reset the connection, if it has not come to its end by itself. */
void dial_abort(struct stream *s);

/* pipes.c */
void close_all(int *fds, unsigned count);
/* Non-blocking from now on, and watched. */
bool keep_end(int fd, uint32_t events, const struct stream *s, enum watch_what what);
enum relayed { RELAYED_NOTHING, RELAYED_SOME, RELAYED_END };
/* One read of the first source into the link's buffer. At its end `error` is why, or 0; the source is not closed. */
enum relayed relay(struct stream *s, uint32_t window, int *error);

/* report.c: the forked side's channel to the agent, one record a message */
#define REPORT_MAX 16384u
enum report_kind { REPORT_CGROUP = 'C', REPORT_FAILED = 'F', REPORT_RESULT = 'R' };
bool report_pair(int fds[2]);
void report_send(int fd, enum report_kind kind, const uint8_t *payload, size_t length);
_Noreturn void report_failure(int fd, const char *stage, int error, const char *message);

/* processes.c */
/* The unified line (`0::/...`) of a process; false when there is none. */
bool process_cgroup(pid_t pid, char *line, size_t size);
void tree_signal(const struct stream *s, int number);

#endif
