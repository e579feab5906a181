/* Users and groups of the sandbox, from its own /etc/passwd and /etc/group.
 *
 * Those files are the tenant's: only regular files are opened, without blocking, and only the first 4 MiB are read.
 * Called in forked children alone: even a file system that hangs costs one child, never the agent.
 */
#ifndef BELLGLASS_USERS_H
#define BELLGLASS_USERS_H

#include <sys/types.h>

#include "request.h"

#define GROUPS_MAX 256

extern const char *passwd_path, *group_path;   /* tests point them elsewhere */

struct identity {
    uid_t uid;
    gid_t gid;
    char name[USER_BYTES_MAX + 1];
    char home[PATH_BYTES_MAX + 1];
    char shell[256];
    gid_t groups[GROUPS_MAX];
    int group_count;
};

/* A name or a decimal uid; absent means the agent's own user. 0 or an errno (ENOENT: no such user). */
int identity_lookup(struct identity *who, struct text user);
/* Become that user for good. 0 or an errno. */
int identity_assume(const struct identity *who);
/* The name of a uid or gid, "" if there is none. The answer is valid until the next call of the same function. */
const char *user_name(uid_t uid);
const char *group_name(gid_t gid);

#endif
