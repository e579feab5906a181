/* bellglass-agent SOCKET | --version: starts programs and moves bytes inside a sandbox, told by the node over one socket.
 *
 * One thread, one epoll loop, edges only. As PID 1 it reaps strays and ends the sandbox on SIGTERM. It holds no secret,
 * is not dumpable, and everything that may block or read the tenant's files happens in forked children.
 */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EVENTS_MAX 64
#define BUFFERS_KEPT_BYTES 65536u

struct agent agent;

int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void warn(const char *what)
{
    const char *parts[] = { "bellglass-agent: ", what, "\n" };

    for (int i = 0; i < 3; i++)
        if (write(2, parts[i], strlen(parts[i])) < 0)
            return;
}

static int fatal(const char *what)
{
    warn(what);
    return 1;
}

bool watch(int fd, uint32_t events, const struct stream *s, enum watch_what what)
{
    struct epoll_event event = { .events = events };

    event.data.u64 = (s == NULL ? 0 : (uint64_t)(s - streams) << 8) | (uint64_t)what;
    return epoll_ctl(agent.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Only flags are set here: an event of a pipe closed a moment ago then costs a read that finds nothing. */
static void note(const struct epoll_event *event, bool *signals)
{
    struct stream *s = &streams[event->data.u64 >> 8];

    switch (event->data.u64 & 0xff) {
    case WATCH_REPORT: s->report_ready = true; break;
    case WATCH_STDIN: s->in.ready = true; break;
    case WATCH_OUT0: s->out[0].ready = true; break;
    case WATCH_OUT1: s->out[1].ready = true; break;
    case WATCH_SOCKET:
        s->in.ready |= (event->events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
        s->out[0].ready |= (event->events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
        break;
    case WATCH_SIGNAL: *signals = true; break;
    default:
        if (event->events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP))
            agent.link.readable = true;
        if (event->events & EPOLLOUT)
            agent.link.writable = true;
    }
}

static void reap(void)
{
    struct rusage usage;
    int status;
    pid_t pid;

    while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
        for (unsigned i = 0; i < stream_high; i++) {
            struct stream *s = &streams[i];
            if (s->kind == KIND_FREE || s->pid != pid)
                continue;
            if (s->kind == KIND_EXECUTION)
                execution_reaped(s, status, &usage);
            else
                operation_reaped(s, status);
            break;
        }
    }
}

static void end_sandbox(void)
{
    if (agent.init) {
        kill(-1, SIGKILL);
    } else {
        for (unsigned i = 0; i < stream_high; i++)
            if (streams[i].kind != KIND_FREE && streams[i].pid > 0)
                execution_abort(&streams[i]);
    }
    _exit(0);
}

static void take_signals(void)
{
    struct signalfd_siginfo info;

    while (read(agent.signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGTERM)
            end_sandbox();
    reap();
}

static bool pump(int64_t now)
{
    static unsigned first;
    bool changed = link_emit();
    unsigned high = stream_high;

    for (unsigned n = 0; n < high; n++) {
        struct stream *s = &streams[(first + n) % high];
        if (s->kind == KIND_EXECUTION)
            changed |= execution_pump(s, now);
        else if (s->kind == KIND_FILE)
            changed |= operation_pump(s, now);
        else if (s->kind == KIND_DIAL)
            changed |= dial_pump(s);
        if (s->kind != KIND_FREE)
            changed |= stream_emit(s);
    }
    first = high ? (first + 1) % high : 0;   /* whoever is served last in this turn comes earlier in the next */
    return link_flush() || changed;
}

static void sooner(int64_t *at, int64_t candidate)
{
    if (*at < 0 || candidate < *at)
        *at = candidate;
}

/* Milliseconds until something is due by the clock; -1: nothing is. */
static int next_timeout(int64_t now)
{
    int64_t at = -1;

    if (agent.link.state == LINK_DOWN)
        sooner(&at, agent.link.retry_at_ms);
    for (unsigned i = 0; i < stream_high; i++) {
        const struct stream *s = &streams[i];
        if (s->kind == KIND_FILE && s->kill_at_ms != 0)
            sooner(&at, s->kill_at_ms);
        if (s->kind != KIND_EXECUTION || s->phase != PHASE_EXITED)
            continue;
        for (int c = 0; c < 2; c++) {
            const struct source *o = &s->out[c];
            if (!o->eof && o->empty_at_ms != 0)
                sooner(&at, (o->empty_at_ms > s->exited_at_ms ? o->empty_at_ms : s->exited_at_ms) + DRAIN_MS);
        }
    }
    if (at < 0)
        return -1;
    return at <= now ? 0 : (int)(at - now);
}

/* A burst leaves the buffers' pages behind; an idle agent gives them back. */
static void trim(void)
{
    if ((agent.link.out.high <= BUFFERS_KEPT_BYTES && agent.link.in.high <= BUFFERS_KEPT_BYTES) || stream_high > 0
        || outbuf_pending(&agent.link.out) > 0 || agent.link.in.start != agent.link.in.end)
        return;
    madvise(agent.link.out.data, OUTBUF_SIZE, MADV_DONTNEED);
    madvise(agent.link.in.data, INBUF_SIZE, MADV_DONTNEED);
    agent.link.out.start = agent.link.out.end = agent.link.out.high = 0;
    agent.link.in.start = agent.link.in.end = agent.link.in.high = 0;
}

static void loop(void)
{
    struct epoll_event events[EVENTS_MAX];
    int timeout = 0;

    for (;;) {
        bool signals = false;
        int count = epoll_wait(agent.epoll_fd, events, EVENTS_MAX, timeout);
        for (int i = 0; i < count; i++)
            note(&events[i], &signals);
        int64_t now = now_ms();
        if (agent.link.state == LINK_DOWN && now >= agent.link.retry_at_ms)
            link_dial();
        bool busy = link_read();
        if (signals)
            take_signals();
        busy |= pump(now);
        if (!busy)
            trim();
        timeout = busy ? 0 : next_timeout(now_ms());
    }
}

static void *map(size_t size)
{
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static bool set_up(void)
{
    sigset_t handled;
    struct rlimit most;

    agent.init = getpid() == 1;
    agent.link.fd = -1;
    prctl(PR_SET_DUMPABLE, 0);
    umask(022);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    sigaddset(&handled, SIGTERM);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    do   /* the standard descriptors may be closed: nothing else may take their numbers */
        agent.null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (agent.null_fd >= 0 && agent.null_fd < 3);
    if (getrlimit(RLIMIT_NOFILE, &agent.files) == 0) {
        most = agent.files;
        most.rlim_cur = most.rlim_max;
        setrlimit(RLIMIT_NOFILE, &most);
    }
    agent.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    agent.signal_fd = signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC);
    agent.link.in.data = map(INBUF_SIZE + 1);   /* one more: a child may put a NUL behind a START's last value */
    agent.link.out.data = map(OUTBUF_SIZE);
    return agent.null_fd >= 0 && agent.epoll_fd >= 0 && agent.signal_fd >= 0
        && agent.link.in.data != MAP_FAILED && agent.link.out.data != MAP_FAILED
        && getrandom(agent.boot_id, sizeof agent.boot_id, 0) == (ssize_t)sizeof agent.boot_id
        && watch(agent.signal_fd, EPOLLIN | EPOLLET, NULL, WATCH_SIGNAL);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        static const char version[] = "bellglass-agent " AGENT_VERSION "\n";

        return write(1, version, sizeof version - 1) < 0;
    }
    if (argc != 2 || strlen(argv[1]) >= sizeof ((struct sockaddr_un *)0)->sun_path)
        return fatal("usage: bellglass-agent SOCKET");
    agent.socket_path = argv[1];
    if (!set_up())
        return fatal("cannot set up");
    loop();
}
