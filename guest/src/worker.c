/* See worker.h: becoming the user, the way in and out, and which function does which operation. */
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct worker worker;
uint8_t io_buffer[IO_BYTES];
static volatile sig_atomic_t stopped;

static void on_term(int number)
{
    (void)number;
    stopped = 1;
}

bool worker_stopped(void) { return stopped; }

void worker_fail(const char *stage, int error, const char *message)
{
    void (*undo)(void) = worker.undo;

    worker.undo = NULL;
    if (undo != NULL)
        undo();
    if (stopped)
        report_failure(worker.report_fd, "aborted", EINTR, "aborted");
    report_failure(worker.report_fd, stage, error, message);
}

void worker_check(void)
{
    if (stopped)
        worker_fail("aborted", EINTR, "aborted");
}

void worker_result(const struct tlv_writer *w)
{
    report_send(worker.report_fd, REPORT_RESULT, w->data, w->used);
}

void worker_done(const struct tlv_writer *w)
{
    worker_result(w);
    _exit(0);
}

size_t input_read(uint8_t *buffer, size_t size)
{
    for (;;) {
        worker_check();
        ssize_t n = read(worker.in_fd, buffer, size);
        if (n > 0)
            return (size_t)n;
        if (n < 0 && errno == EINTR)
            continue;
        uint8_t byte = 0;
        if (n == 0 && recv(worker.report_fd, &byte, 1, MSG_DONTWAIT) == 1 && byte == 'C')
            return 0;
        worker_fail("aborted", EPIPE, "the input ended without being complete");
    }
}

void output_write(const uint8_t *data, size_t length)
{
    while (length > 0) {
        worker_check();
        ssize_t n = write(worker.out_fd, data, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            worker_fail("aborted", errno, "nobody takes the output");
        data += n;
        length -= (size_t)n;
        worker.sent += (uint64_t)n;
    }
}

static void take_path(char *to, struct text text)
{
    if (text.data != NULL)
        memcpy(to, text.data, text.length);
    to[text.data == NULL ? 0 : text.length] = 0;
}

/* Relative paths start at the base folder; a write that makes parents makes that one too. */
static void enter_base(void)
{
    const struct file_request *r = worker.r;
    char base[PATH_BYTES_MAX + 1];

    if (worker.path[0] == '/' && (worker.path2[0] == '/' || worker.path2[0] == 0))
        return;
    if (r->base.data != NULL)
        take_path(base, r->base);
    else
        memcpy(base, worker.gives ? worker.owner.home : worker.who.home, sizeof base);
    if (chdir(base) == 0)
        return;
    int error = errno;
    if (error == ENOENT && flag(FILE_PARENTS)) {
        unsigned created = 0;
        error = make_folders_at(AT_FDCWD, base, 0755, &created);
        if (error == 0 && chdir(base) == 0)
            return;
        if (error == 0)
            error = errno;
    }
    worker_fail("path", error, "cannot enter the base folder");
}

void work_sync(void)
{
    struct tlv_writer nothing = { 0 };
    int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    /* sync(2) would wait for every file system of the host */
    if (fd < 0 || syncfs(fd) < 0)
        worker_fail("write", errno, "cannot sync the file system");
    worker_done(&nothing);
}

void worker_run(const struct worker_setup *setup)
{
    struct sigaction action = { .sa_handler = on_term };   /* no SA_RESTART: blocked calls end with EINTR */
    int keep[3] = { setup->in_fd, setup->out_fd, setup->report_fd };

    child_reset_signals();
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    child_close_others(keep, 3);
    worker.r = setup->request;
    worker.in_fd = setup->in_fd;
    worker.out_fd = setup->out_fd;
    worker.report_fd = setup->report_fd;
    take_path(worker.path, worker.r->path);
    take_path(worker.path2, worker.r->path2);
    int error = identity_lookup(&worker.who, worker.r->user);
    if (error != 0)
        worker_fail("user", error, "no such user");
    worker.gives = worker.r->owner.data != NULL;
    if (worker.gives && (error = identity_lookup(&worker.owner, worker.r->owner)) != 0)
        worker_fail("user", error, "no such owner");
    error = identity_assume(&worker.who);
    if (error != 0)
        worker_fail("user", error, "cannot become that user");
    prctl(PR_SET_PDEATHSIG, SIGTERM);   /* only now: a change of uid clears it */
    umask(0);
    enter_base();
    switch (worker.r->operation) {
    case OP_READ: work_read();
    case OP_WRITE: work_write();
    case OP_LIST: work_list();
    case OP_STAT: work_stat();
    case OP_MKDIR: work_mkdir();
    case OP_MOVE: work_move();
    case OP_REMOVE: work_remove();
    case OP_ARCHIVE_OUT: work_archive_out();
    case OP_ARCHIVE_IN: work_archive_in();
    case OP_WATCH: work_watch();
    default: work_sync();
    }
}
