/* START, FILE and SIGNAL decoded and checked, without copying: every pointer leads into the payload. */
#ifndef BELLGLASS_REQUEST_H
#define BELLGLASS_REQUEST_H

#include "tlv.h"

#define PATH_BYTES_MAX 4095u
#define USER_BYTES_MAX 64u

struct text { const uint8_t *data; uint32_t length; };   /* not terminated */

enum { START_STDIN = 1, START_USER_ENV = 2, START_MAKE_CWD = 4 };

struct start_request {
    const uint8_t *payload;
    size_t length;
    uint32_t argc, envc;
    struct text cwd, user, execution;   /* absent: data is NULL */
    uint64_t flags, oom_score_adj, umask;
    uint64_t columns, rows;             /* of a terminal; both 0: pipes */
};

/* NULL when good, else what is wrong (static text). argv and env are walked with tlv_next: tags 1 and 2. */
const char *start_decode(struct start_request *r, const uint8_t *payload, size_t length);

enum file_operation {
    OP_READ = 1, OP_WRITE, OP_LIST, OP_STAT, OP_MKDIR, OP_MOVE, OP_REMOVE, OP_ARCHIVE_OUT, OP_ARCHIVE_IN, OP_SYNC,
    OP_WATCH,
};
enum {
    FILE_PARENTS = 1, FILE_IN_PLACE = 2, FILE_OVERWRITE = 4, FILE_RECURSIVE = 8,
    FILE_NOFOLLOW = 16, FILE_EXCLUSIVE = 32, FILE_TRUNCATE = 64, FILE_ATTRIBUTES = 128,
};
#define UNLIMITED UINT64_MAX
#define ATTRIBUTE_NAME_MAX 250u   /* "user." is put before it, and the kernel takes 255 */

struct file_request {
    const uint8_t *payload;              /* attributes are walked with tlv_next: tag 13, name NUL value */
    size_t payload_length;
    uint64_t operation, flags;
    struct text path, path2, base, user, owner;
    uint64_t mode;                       /* UNLIMITED: not given */
    uint64_t offset, length, max_bytes, max_entries, expected, depth;   /* UNLIMITED: not given */
    uint64_t cache_bytes;                /* the same; what is read beyond it does not stay in the page cache */
};

const char *file_decode(struct file_request *r, const uint8_t *payload, size_t length);

/* DIAL: the port, 1 to 65535. */
const char *dial_decode(uint16_t *port, const uint8_t *payload, size_t length);

/* RESIZE: both from 1 to 65535. */
const char *resize_decode(uint64_t *columns, uint64_t *rows, const uint8_t *payload, size_t length);

struct signal_request { uint64_t number, scope; };

const char *signal_decode(struct signal_request *r, const uint8_t *payload, size_t length);

#endif
