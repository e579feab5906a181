/* POSIX tar without IO: a reader that is fed bytes and yields events, and a header writer.
 *
 * Read: ustar, pax headers (path, linkpath, size, mtime), GNU long names, base-256 numbers. Refused: sparse files and
 * types that nobody needs in an archive of files. Paths come out cleaned of "./", "//" and a last "/", and are refused
 * when absolute, empty, over-long or holding "..". Where a link's target leads is the unpacker's to judge.
 */
#ifndef BELLGLASS_TAR_H
#define BELLGLASS_TAR_H

#include "wire.h"

#define TAR_BLOCK 512u
#define TAR_PATH_MAX 4095u
#define TAR_META_MAX 65536u
#define TAR_TRAILER_MAX (1u << 20)

enum tar_type { TAR_FILE = 'f', TAR_FOLDER = 'd', TAR_SYMLINK = 'l', TAR_HARDLINK = 'h' };

struct tar_entry {
    char type;
    char path[TAR_PATH_MAX + 1];   /* "" for the archive's root folder itself ("./") */
    char link[TAR_PATH_MAX + 1];   /* as it stands for symlinks, cleaned for hard links */
    uint32_t mode;
    uint64_t size;
    int64_t mtime_s;
    uint32_t mtime_ns;
};

enum tar_event {
    TAR_MORE,    /* all input is used up */
    TAR_ENTRY,   /* `entry` is filled; its data follows if it is a file with a size */
    TAR_DATA,    /* a slice of the file's bytes */
    TAR_END,     /* the two zero blocks; what follows is ignored */
    TAR_BAD,     /* `error` says why */
};

struct tar_reader {
    uint8_t block[TAR_BLOCK];
    size_t held;                   /* bytes of the block */
    uint64_t left, padding;        /* of the data at hand */
    char meta;                     /* type of the header whose data is collected; 0: none */
    uint8_t meta_data[TAR_META_MAX + 1];
    size_t meta_length;
    bool zero_seen, ended;
    uint64_t trailer;
    struct { bool path, link, size, mtime; } have;
    struct tar_entry next;         /* what pax and GNU headers said of the next entry */
    struct tar_entry entry;
    const char *error;
};

void tar_reader_init(struct tar_reader *t);
enum tar_event tar_next(struct tar_reader *t, const uint8_t **data, size_t *length,
                        const uint8_t **slice, size_t *slice_length);
/* True if the input may end here. */
bool tar_complete(const struct tar_reader *t);

#define TAR_HEADER_MAX (3u * TAR_BLOCK + 2u * (TAR_PATH_MAX + 32u) + 256u)

struct tar_member {
    const char *path, *link;
    char type;
    uint32_t mode, uid, gid;
    uint64_t size;
    int64_t mtime_s;
};
/* The header blocks of one member; at most TAR_HEADER_MAX bytes. Folders get a "/" behind their path. */
size_t tar_header(uint8_t *out, const struct tar_member *m);

#endif
