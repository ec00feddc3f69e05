/* Rank threads: a Lua state on each new thread. Payloads and results are strings; nothing calls across states. */
#include "host.h"

#include <lauxlib.h>
#include <lualib.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct rank_thread {
    luda_rank_threads *group;
    pthread_t thread;
    int index;
    char *payload;
    size_t payload_size;
    char *result;
    size_t result_size;
    bool started, failed, ended, reported;
} rank_thread;

struct luda_rank_threads {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    char *package_path, *bootstrap;
    int count;
    rank_thread ranks[];
};

/* Keeps the string on top of the stack as the thread's result. */
static void keep_result(rank_thread *rank, lua_State *L, bool failed)
{
    size_t size = 0;
    const char *text = lua_tolstring(L, -1, &size);
    if (!text) {
        text = "the thread raised an error that is not text";
        size = strlen(text);
        failed = true;
    }
    rank->result = malloc(size + 1);
    rank->failed = failed || !rank->result;
    if (!rank->result)
        return;
    memcpy(rank->result, text, size);
    rank->result[size] = '\0';
    rank->result_size = size;
}

/* Under lua_pcall, so that running out of memory is an error like any other. */
static int run_bootstrap(lua_State *L)
{
    rank_thread *rank = lua_touserdata(L, 1);
    luaL_openlibs(L);
    lua_getglobal(L, "package");
    lua_pushstring(L, rank->group->package_path);
    lua_setfield(L, -2, "path");
    lua_pop(L, 1);
    if (luaL_loadbuffer(L, rank->group->bootstrap, strlen(rank->group->bootstrap), "=luda.thread") != 0)
        return lua_error(L);
    lua_call(L, 0, 1);
    lua_pushinteger(L, rank->index);
    lua_pushlstring(L, rank->payload, rank->payload_size);
    lua_call(L, 2, 1);
    return 1;
}

static void *run_thread(void *argument)
{
    rank_thread *rank = argument;
    luda_rank_threads *group = rank->group;
    lua_State *L = luaL_newstate();
    if (L) {
        lua_pushcfunction(L, run_bootstrap);
        lua_pushlightuserdata(L, rank);
        bool failed = lua_pcall(L, 1, 1, 0) != 0;
        keep_result(rank, L, failed);
        lua_close(L);
    } else {
        rank->failed = true;
    }
    luda_context_use(NULL);
    pthread_mutex_lock(&group->lock);
    rank->ended = true;
    pthread_cond_broadcast(&group->ended);
    pthread_mutex_unlock(&group->lock);
    return NULL;
}

static void free_group(luda_rank_threads *group)
{
    for (int i = 0; i < group->count; i++) {
        free(group->ranks[i].payload);
        free(group->ranks[i].result);
    }
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->ended);
    free(group->package_path);
    free(group->bootstrap);
    free(group);
}

static luda_rank_threads *make_group(int count, const char *package_path, const char *bootstrap, const char *const *payloads,
                                const size_t *sizes)
{
    pthread_condattr_t monotonic;
    luda_rank_threads *group = calloc(1, sizeof *group + (size_t)count * sizeof *group->ranks);
    if (!group)
        return NULL;
    pthread_mutex_init(&group->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&group->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    group->count = count;
    group->package_path = strdup(package_path);
    group->bootstrap = strdup(bootstrap);
    bool complete = group->package_path && group->bootstrap;
    for (int i = 0; i < count; i++) {
        rank_thread *rank = &group->ranks[i];
        rank->group = group;
        rank->index = i;
        rank->payload_size = sizes[i];
        rank->payload = malloc(sizes[i] + 1);
        if (rank->payload)
            memcpy(rank->payload, payloads[i], sizes[i]);
        complete = complete && rank->payload;
    }
    if (complete)
        return group;
    free_group(group);
    return NULL;
}

luda_status luda_rank_threads_start(int count, const char *package_path, const char *bootstrap, const char *const *payloads,
                               const size_t *sizes, luda_rank_threads **out)
{
    if (count < 1 || count > 1024)
        return luda__host_fail(LUDA_EINVAL, "spawn: %d threads, 1 to 1024 are possible", count);
    luda_rank_threads *group = make_group(count, package_path, bootstrap, payloads, sizes);
    if (!group)
        return luda__host_fail(LUDA_ENOMEM, "spawn: no memory for %d threads", count);
    for (int i = 0; i < count; i++) {
        rank_thread *rank = &group->ranks[i];
        rank->started = pthread_create(&rank->thread, NULL, run_thread, rank) == 0;
        if (!rank->started)
            rank->ended = rank->failed = true;
    }
    *out = group;
    return LUDA_OK;
}

static int next_ended(luda_rank_threads *group)
{
    int running = 0;
    for (int i = 0; i < group->count; i++) {
        if (group->ranks[i].ended && !group->ranks[i].reported) {
            group->ranks[i].reported = true;
            return i;
        }
        running += !group->ranks[i].ended;
    }
    return running ? -2 : -1;
}

int luda_rank_threads_wait(luda_rank_threads *group, int timeout_ms)
{
    struct timespec until = luda__host_after(timeout_ms);
    pthread_mutex_lock(&group->lock);
    int index = next_ended(group);
    for (int late = 0; index == -2 && !late; index = next_ended(group))
        late = timeout_ms < 0 ? pthread_cond_wait(&group->ended, &group->lock)
                              : pthread_cond_timedwait(&group->ended, &group->lock, &until);
    pthread_mutex_unlock(&group->lock);
    return index;
}

const char *luda_rank_threads_result(luda_rank_threads *group, int index, size_t *size, int *failed)
{
    const rank_thread *rank = &group->ranks[index];
    *failed = rank->failed;
    *size = rank->result_size;
    if (rank->result)
        return rank->result;
    return rank->started ? "no memory for a Lua state" : "the system has no thread to give";
}

void luda_rank_threads_release(luda_rank_threads *group)
{
    if (!group)
        return;
    for (int i = 0; i < group->count; i++)
        if (group->ranks[i].started)
            pthread_join(group->ranks[i].thread, NULL);
    free_group(group);
}
