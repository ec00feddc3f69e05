/* SIGTERM, SIGINT and SIGHUP as a count that training loops ask for at a safe moment. */
#include "host.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static volatile sig_atomic_t requested;

static void on_signal(int number)
{
    if (requested && number == SIGINT) {
        signal(SIGINT, SIG_DFL); /* the second Ctrl-C is meant */
        raise(SIGINT);
    }
    requested = requested + 1;
}

luda_status luda_stop_watch(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART }, hangup = { 0 };
    sigemptyset(&action.sa_mask);
    bool failed = sigaction(SIGTERM, &action, NULL) != 0 || sigaction(SIGINT, &action, NULL) != 0 ||
                  sigaction(SIGHUP, NULL, &hangup) != 0;
    if (failed || (hangup.sa_handler != SIG_IGN && sigaction(SIGHUP, &action, NULL) != 0))
        return luda__host_fail(LUDA_EIO, "stop: signals cannot be watched: %s", strerror(errno));
    return LUDA_OK;
}

int luda_stop_requested(void)
{
    return requested;
}

luda_status luda__host_fail(luda_status status, const char *format, ...)
{
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return luda_set_error(status, message);
}
