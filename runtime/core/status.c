/* Status codes and the calling thread's last message. */
#include "core.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[1024];

luda_status luda__fail(luda_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status;
}

luda_status luda__fail_text(luda_status status, const char *text)
{
    if (text != message)
        snprintf(message, sizeof message, "%s", text);
    return status;
}

luda_status luda_set_error(luda_status status, const char *sentence)
{
    return luda__fail_text(status, sentence);
}

const char *luda_last_error(void)
{
    return message;
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
