/*
 * Transports that come as libraries: found by name, opened once, never closed. `tcp` and `local` are built in; any other
 * name is that of libluda_NAME.so beside libluda, or of what a library has registered.
 */
#include "collective.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 32, NAME_BYTES = 32 };

static struct {
    char name[NAME_BYTES];
    luda_transport_open open;
} rows[MOST];
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_name(const char *name)
{
    size_t length = name ? strlen(name) : 0;
    for (size_t i = 0; i < length; i++)
        if (!islower((unsigned char)name[i]) && !isdigit((unsigned char)name[i]) && name[i] != '_')
            return false;
    return length > 0 && length < NAME_BYTES;
}

static bool is_built_in(const char *name)
{
    return strcmp(name, "tcp") == 0 || strcmp(name, "local") == 0;
}

static int find(const char *name)
{
    int at = 0;
    while (at < count && strcmp(rows[at].name, name) != 0)
        at++;
    return at;
}

luda_status luda_transport_register(const char *name, luda_transport_open open)
{
    int at;
    if (!is_name(name) || is_built_in(name) || !open)
        return luda__fail(LUDA_EINVAL, "transport: '%.40s' cannot be registered; a name has 1 to %d lower-case letters, digits and _, and "
                          "tcp and local are built in", name ? name : "", NAME_BYTES - 1);
    pthread_mutex_lock(&lock);
    at = find(name);
    if (at < MOST) {
        snprintf(rows[at].name, NAME_BYTES, "%s", name);
        rows[at].open = open;
        count += at == count;
    }
    pthread_mutex_unlock(&lock);
    return at < MOST ? LUDA_OK : luda__fail(LUDA_EINVAL, "transport: %d are registered already", MOST);
}

luda_status luda_transport_load(const char *path)
{
    luda_status (*start)(void);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return luda__fail(LUDA_EIO, "transport: %s", dlerror());
    start = (luda_status(*)(void))(uintptr_t)dlsym(library, "luda_transport_start");
    return start ? start() : luda__fail(LUDA_EINVAL, "transport: %s has no function luda_transport_start", path);
}

static luda_transport_open opener(const char *name)
{
    luda_transport_open open = NULL;
    int at;
    pthread_mutex_lock(&lock);
    at = find(name);
    if (at < count)
        open = rows[at].open;
    pthread_mutex_unlock(&lock);
    return open;
}

/* libluda_NAME.so in the folder of libluda. */
static luda_status load_beside(const char *name)
{
    char path[1024];
    Dl_info info;
    const char *slash = dladdr((const void *)rows, &info) && info.dli_fname ? strrchr(info.dli_fname, '/') : NULL;
    int folder = slash ? (int)(slash - info.dli_fname) + 1 : 0;
    snprintf(path, sizeof path, "%.*slibluda_%s.so", folder, slash ? info.dli_fname : "", name);
    if (access(path, R_OK) != 0)
        return luda__fail(LUDA_EIO, "transport: '%s' is neither registered nor a library %.800s", name, path);
    LUDA_TRY(luda_transport_load(path));
    return opener(name) ? LUDA_OK : luda__fail(LUDA_EINVAL, "transport: %s registers no transport '%s'", path, name);
}

luda_status luda_comm_open(const char *transport, const char *address, const char *session, int rank, int size,
                           const luda_comm_options *options, luda_comm **out)
{
    if (!transport || strcmp(transport, "tcp") == 0)
        return luda_comm_connect(address, session, rank, size, options, out);
    if (!is_name(transport) || is_built_in(transport))
        return luda__fail(LUDA_EINVAL, "connect: no transport '%.40s' joins processes; tcp is built in, mpi comes with LUDA", transport);
    if (!opener(transport))
        LUDA_TRY(load_beside(transport));
    return opener(transport)(address, session, rank, size, options, out);
}
