/* Status codes and the calling thread's last message. */
#include "core.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- The message: made with a thread's first failure, since thread storage is scarce (CMakeLists.txt) --- */

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char *message;
static _Thread_local bool lost; /* there was no memory for it */
static pthread_key_t message_key;
static pthread_once_t message_once = PTHREAD_ONCE_INIT;

static void free_message(void *memory)
{
    message = NULL;
    free(memory);
}

static void make_message_key(void)
{
    pthread_key_create(&message_key, free_message);
}

/* NULL where there is no memory for it. */
static char *own_message(void)
{
    if (!message) {
        pthread_once(&message_once, make_message_key);
        message = calloc(1, MESSAGE_BYTES);
        lost = !message;
        pthread_setspecific(message_key, message);
    }
    return message;
}

luda_status luda__fail(luda_status status, const char *format, ...)
{
    char *text = own_message();
    if (!text)
        return status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, MESSAGE_BYTES, format, arguments);
    va_end(arguments);
    return status;
}

luda_status luda__fail_text(luda_status status, const char *text)
{
    char *own = own_message();
    if (own && text != own)
        snprintf(own, MESSAGE_BYTES, "%s", text);
    return status;
}

luda_status luda_set_error(luda_status status, const char *sentence)
{
    return luda__fail_text(status, sentence);
}

const char *luda_last_error(void)
{
    return message ? message : lost ? "out of memory, also for a message" : "";
}

const char *luda_status_word(luda_status status)
{
    switch (status) {
#define LUDA_STATUS(name, number, word, sentence)                                                                      \
    case LUDA_##name:                                                                                                  \
        return word;
#include "../status.def"
    }
    return "internal";
}

int luda_version(void)
{
    return LUDA_VERSION_MAJOR * 10000 + LUDA_VERSION_MINOR * 100 + LUDA_VERSION_PATCH;
}
