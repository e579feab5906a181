/* Where an archive is unpacked before it counts, and how it gets into place. */
#ifndef BELLGLASS_UNPACK_H
#define BELLGLASS_UNPACK_H

#include "worker.h"

struct stage {
    bool target_exists;
    int beside;                    /* the folder that holds the stage: the target itself, or the one above it */
    char target[256];              /* its last part, if it does not exist */
    char name[TEMPORARY_SIZE];
    int fd;                        /* the stage */
};

/* Find the target; make its parents if asked to. */
void stage_open(struct stage *s);
/* Make the stage. */
void stage_make(struct stage *s);
/* Move everything into place and sync. First the whole is compared with the target, and only then is anything moved. */
void stage_place(struct stage *s);

#endif
