/* Folders for Lua: require "luda.folder" as functions list and make, which return nil and a reason on failure. */
#include "luda.h"

#include <dirent.h>
#include <errno.h>
#include <lauxlib.h>
#include <lua.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int refuse(lua_State *L, int reason)
{
    lua_pushnil(L);
    lua_pushstring(L, strerror(reason));
    return 2;
}

/* list(path): names without those that begin with a dot; none where there is no folder. */
static int list(lua_State *L)
{
    DIR *folder = opendir(luaL_checkstring(L, 1));
    struct dirent *entry;
    int count = 0;

    if (!folder && errno != ENOENT)
        return refuse(L, errno);
    lua_newtable(L);
    while (folder && (entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        lua_pushstring(L, entry->d_name);
        lua_rawseti(L, -2, ++count);
    }
    if (folder)
        closedir(folder);
    return 1;
}

static bool is_folder(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* make(path): the folder and those above it. */
static int make(lua_State *L)
{
    char *path = strdup(luaL_checkstring(L, 1));
    int reason = path ? 0 : ENOMEM;

    for (char *end = path; path && !reason && *end;) {
        end += 1 + strcspn(end + 1, "/");
        char next = *end;
        *end = '\0';
        if (mkdir(path, 0777) != 0 && !is_folder(path))
            reason = errno;
        *end = next;
    }
    free(path);
    if (reason)
        return refuse(L, reason);
    lua_pushboolean(L, 1);
    return 1;
}

LUDA_API int luaopen_luda_folder(lua_State *L)
{
    lua_createtable(L, 0, 2);
    lua_pushcfunction(L, list);
    lua_setfield(L, -2, "list");
    lua_pushcfunction(L, make);
    lua_setfield(L, -2, "make");
    return 1;
}
