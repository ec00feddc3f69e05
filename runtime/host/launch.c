/*
 * The launcher's own process: forks the keeper of the ranks, passes requests to stop on to it, and adopts the ranks'
 * processes should the keeper be killed.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POLL_MS = 50, SIGNALS = 4, SECRET_BYTES = 16 };

static const int CAUGHT[SIGNALS] = { SIGTERM, SIGINT, SIGHUP, SIGTSTP };

struct luda_launch {
    pid_t keeper; /* 0 once it has ended */
    int orders, answer;
    int stops; /* requests that were passed on */
    int adopted_before;
    bool clean;
    struct sigaction before[SIGNALS];
    luda_launch_report report;
};

static volatile sig_atomic_t pauses;

static void on_pause(int number)
{
    (void)number;
    pauses = 1;
}

static void ask_to_stop(const luda_launch *launch)
{
    ssize_t written = launch->orders >= 0 ? write(launch->orders, "", 1) : 0;
    (void)written; /* a keeper that is gone is noticed by its answer */
}

/* Ctrl-Z reaches the launcher only: the ranks are in a group of their own, and stop and go on with it. */
static void pause_all(const luda_launch *launch)
{
    pauses = 0;
    kill(-launch->keeper, SIGSTOP);
    raise(SIGSTOP);
    kill(-launch->keeper, SIGCONT);
}

/* The process is as it was before the launch. */
static void clean_up(luda_launch *launch)
{
    int status = 0;
    if (launch->clean)
        return;
    launch->clean = true;
    if (launch->keeper > 0) {
        close(launch->orders); /* ends a keeper that still works */
        launch->orders = -1;
        waitpid(launch->keeper, &status, 0);
        if (WIFSIGNALED(status))
            launch->report = (luda_launch_report){ 128 + WTERMSIG(status), -1, WTERMSIG(status), launch->stops > 0 };
        luda__end_children(); /* none, unless the keeper was killed */
        close(launch->answer);
        launch->keeper = 0;
    }
    prctl(PR_SET_CHILD_SUBREAPER, launch->adopted_before);
    for (int i = 0; i < SIGNALS; i++)
        sigaction(CAUGHT[i], &launch->before[i], NULL);
}

static luda_status start_keeper(const luda_launch_options *options, luda_launch *launch)
{
    int orders[2] = { -1, -1 }, answer[2] = { -1, -1 };
    bool piped = pipe2(orders, O_CLOEXEC) == 0 && pipe2(answer, O_CLOEXEC) == 0;
    launch->stops = luda_stop_requested();
    launch->keeper = piped ? fork() : -1;
    if (launch->keeper == 0) {
        close(orders[1]); /* whose end is the launcher's */
        luda__keep(options, orders[0], answer[1]);
    }
    int problem = errno;
    for (int i = 0; i < 2; i++) {
        int end = i == 0 ? orders[0] : answer[1], own = i == 0 ? orders[1] : answer[0];
        if (end >= 0)
            close(end);
        if (own >= 0 && launch->keeper < 0)
            close(own);
    }
    launch->orders = orders[1];
    launch->answer = answer[0];
    if (launch->keeper > 0)
        return LUDA_OK;
    launch->keeper = 0;
    return luda__host_fail(LUDA_EIO, "run: the ranks' keeper cannot be started: %s", strerror(problem));
}

luda_status luda_launch_new(const luda_launch_options *options, luda_launch **out)
{
    if (options->ranks < 1 || options->ranks > 4096)
        return luda__host_fail(LUDA_EINVAL, "run: %d ranks, 1 to 4096 are possible", options->ranks);
    luda_launch *launch = calloc(1, sizeof *launch);
    if (!launch)
        return luda__host_fail(LUDA_ENOMEM, "run: no memory for %d ranks", options->ranks);
    struct sigaction pause = { .sa_handler = on_pause };
    for (int i = 0; i < SIGNALS; i++)
        sigaction(CAUGHT[i], NULL, &launch->before[i]);
    prctl(PR_GET_CHILD_SUBREAPER, &launch->adopted_before);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    luda_status status = luda_stop_watch();
    if (status == LUDA_OK && isatty(0))
        sigaction(SIGTSTP, &pause, NULL);
    if (status == LUDA_OK)
        status = start_keeper(options, launch);
    if (status == LUDA_OK)
        *out = launch;
    else
        luda_launch_release(launch);
    return status;
}

int luda_launch_wait(luda_launch *launch, int timeout_ms, luda_launch_report *report)
{
    double until = luda__host_now() + timeout_ms / 1000.0;
    while (launch->keeper > 0) {
        struct pollfd wait = { .fd = launch->answer, .events = POLLIN };
        int ready = poll(&wait, 1, timeout_ms < POLL_MS ? timeout_ms : POLL_MS);
        for (; launch->stops < luda_stop_requested(); launch->stops++)
            ask_to_stop(launch);
        if (pauses)
            pause_all(launch);
        if (ready > 0) {
            luda_launch_report seen;
            bool whole = read(launch->answer, &seen, sizeof seen) == (ssize_t)sizeof seen;
            launch->report = whole ? seen : (luda_launch_report){ .status = 127, .rank = -1 };
            clean_up(launch);
        } else if (luda__host_now() >= until) {
            return 0;
        }
    }
    *report = launch->report;
    return 1;
}

void luda_launch_release(luda_launch *launch)
{
    if (!launch)
        return;
    clean_up(launch);
    free(launch);
}

luda_status luda_secret_file_check(const char *path)
{
    struct stat file;
    if (stat(path, &file) != 0)
        return luda__host_fail(LUDA_EIO, "run: cannot open the secret %s: %s", path, strerror(errno));
    if (file.st_mode & (S_IRWXG | S_IRWXO))
        return luda__host_fail(LUDA_EINVAL, "run: the secret %s is open to others (mode %o); chmod 600 it", path,
                               file.st_mode & 0777u);
    if (file.st_size < SECRET_BYTES)
        return luda__host_fail(LUDA_EINVAL, "run: the secret %s has %lld bytes; it needs at least %d, best random ones", path,
                               (long long)file.st_size, SECRET_BYTES);
    return LUDA_OK;
}
