/*
 * The program `luda`: a Lua state, the path to the Lua files, and luda.cli. Everything that a command does is Lua.
 */
#include <lauxlib.h>
#include <libgen.h>
#include <limits.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const boot =
    "local folder, program = ...\n"
    "local path = { folder .. '/../lua/?.lua', folder .. '/../lua/?/init.lua',\n"
    "  folder .. '/../share/luda/?.lua', folder .. '/../share/luda/?/init.lua' }\n"
    "local extra = os.getenv('LUDA_PATH')\n"
    "if extra and extra ~= '' then path[#path + 1] = extra end\n"
    "package.path = table.concat(path, ';') .. ';' .. package.path\n"
    "return require('luda.cli').main(program, arg)\n";

static void program_path(char *path, size_t size, const char *argument)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length < 0)
        snprintf(path, size, "%s", argument);
    else
        path[length] = '\0';
}

static void push_arguments(lua_State *L, int argc, char **argv)
{
    lua_createtable(L, argc, 1);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i);
    }
    lua_setglobal(L, "arg");
}

int main(int argc, char **argv)
{
    char program[PATH_MAX], folder[PATH_MAX];
    lua_State *L = luaL_newstate();
    if (!L) {
        fprintf(stderr, "luda: no memory for a Lua state\n");
        return 1;
    }
    luaL_openlibs(L);
    push_arguments(L, argc, argv);
    program_path(program, sizeof program, argv[0]);
    snprintf(folder, sizeof folder, "%s", program);
    if (luaL_loadbuffer(L, boot, strlen(boot), "=luda") == 0) {
        lua_pushstring(L, dirname(folder));
        lua_pushstring(L, program);
        if (lua_pcall(L, 2, 1, 0) == 0) {
            int status = (int)lua_tointeger(L, -1);
            lua_close(L);
            return status;
        }
    }
    const char *text = lua_tostring(L, -1);
    fprintf(stderr, "luda: %s\n", text ? text : "the Lua files are damaged");
    lua_close(L);
    return 1;
}
