/* The forked side of a file operation. Everything here runs with the user's rights and ends the process.
 *
 * Undo: whoever makes something temporary sets `undo` first; worker_fail calls it. SIGTERM, the end of the agent and
 * the end of the input without a commit all lead there through `worker_stopped`.
 */
#ifndef BELLGLASS_WORKER_H
#define BELLGLASS_WORKER_H

#include <sys/stat.h>

#include "agent.h"
#include "child.h"

#define IO_BYTES 262144u
#define DEPTH_MAX 200
#define TEMPORARY_PREFIX ".bellglass-"
#define TEMPORARY_SIZE 32

struct worker_setup {
    const struct file_request *request;
    int in_fd, out_fd, report_fd;
};

struct worker {
    const struct file_request *r;
    int in_fd, out_fd, report_fd;
    char path[PATH_BYTES_MAX + 1], path2[PATH_BYTES_MAX + 1];
    struct identity who;
    struct identity owner;       /* whose what is made becomes, if `gives` */
    bool gives;
    void (*undo)(void);
    uint64_t sent;               /* bytes of output */
};

extern struct worker worker;
extern uint8_t io_buffer[IO_BYTES];

_Noreturn void worker_run(const struct worker_setup *setup);
_Noreturn void worker_fail(const char *stage, int error, const char *message);
/* True after SIGTERM; long loops ask it. */
bool worker_stopped(void);
/* worker_fail("aborted") if stopped. */
void worker_check(void);
void worker_result(const struct tlv_writer *w);
_Noreturn void worker_done(const struct tlv_writer *w);

/* Input and output. Both end the worker when the agent went away. */
/* Bytes, or 0 at the committed end. */
size_t input_read(uint8_t *buffer, size_t size);
void output_write(const uint8_t *data, size_t length);

/* send_file.c */
/* `left` bytes of a regular file from its offset on; how many were not there. Without `keep` nothing of them stays in
 * the page cache that is not in use. Ends the worker when they cannot be read. */
uint64_t send_file(int fd, uint64_t left, bool keep);

static inline bool flag(uint64_t bit) { return worker.r->flags & bit; }
static inline mode_t wanted_mode(mode_t fallback)
{
    return worker.r->mode == UNLIMITED ? fallback & (mode_t)~022 : (mode_t)worker.r->mode;
}

/* paths.c */
/* The folder that holds the last part of `path` (an O_PATH descriptor) and that part. "" , "." and ".." are EISDIR.
 * An errno or 0. */
int open_parent(int at, const char *path, bool create, int *parent, char name[256]);
/* mkdir -p; what is made is the owner's, and synced into its parent. An errno or 0; `created` counts. */
int make_folders_at(int at, const char *path, mode_t mode, unsigned *created);
/* fsync of a folder given as O_PATH descriptor; one that cannot be read is synced with its file system. */
int sync_folder(int folder);
void temporary_name(char name[TEMPORARY_SIZE]);
/* Give the file or folder of a descriptor (O_PATH will do) to the request's owner, if there is one. An errno or 0. */
int give(int fd);

/* record.c */
/* Tags of one stat record. `at`/`base` name the file itself; the worker's folder becomes `at`, if that is one. */
void record_put(struct tlv_writer *w, const char *name, int at, const char *base, const struct stat *st);
/* RESULT tag 6: the folder that relative paths started at, where the request named none. */
void base_put(struct tlv_writer *w);
/* RESULT tag 1 for what is at (at, base) now, not following links. */
void record_result(struct tlv_writer *w, const char *name, int at, const char *base);

/* attributes.c */
#define ATTRIBUTES_TOLD_MAX 8192u
/* Tags 13 and 17 of a stat record. `path` must be no link. */
void attributes_put(struct tlv_writer *w, const char *path);
/* With FILE_ATTRIBUTES: the request's become those of the file, others go. Ends the worker where that is refused. */
void attributes_replace(int fd);

/* trees.c */
/* Remove what (at, name) is, with everything in it. An errno or 0. Stops early when the worker is stopped, unless
 * `undoing`. */
int remove_tree(int at, const char *name, bool undoing);
/* Copy a tree without following links; devices and sockets are refused. An errno or 0. */
int copy_tree(int from_at, const char *from, int to_at, const char *to, unsigned depth);

_Noreturn void work_read(void);
_Noreturn void work_write(void);
_Noreturn void work_list(void);
_Noreturn void work_stat(void);
_Noreturn void work_mkdir(void);
_Noreturn void work_move(void);
_Noreturn void work_remove(void);
_Noreturn void work_archive_out(void);
_Noreturn void work_archive_in(void);
_Noreturn void work_sync(void);
_Noreturn void work_watch(void);

#endif
