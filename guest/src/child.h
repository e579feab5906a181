/* The forked side of an execution: from fork to execve. Nothing in here returns to the agent. */
#ifndef BELLGLASS_CHILD_H
#define BELLGLASS_CHILD_H

#include "agent.h"
#include "users.h"

struct child_setup {
    const struct start_request *request;
    int report_fd, cgroup_fd;
    int stdio[3];
};

_Noreturn void child_run(const struct child_setup *setup);

/* For workers too. Default signals, empty mask; `keep` stays open, every other descriptor above 2 is closed. */
void child_reset_signals(void);
void child_close_others(const int *keep, unsigned count);
/* mkdir -p with mode 0777 less umask; an errno or 0. Existing folders are left alone. */
int make_folders(char *path);

/* argv and envp of a START, terminated in place: one byte behind the payload is written. Fuzzed on its own. */
struct vectors { char **argv, **envp; };
bool vectors_build(struct vectors *v, const struct start_request *r, unsigned env_room);

#endif
