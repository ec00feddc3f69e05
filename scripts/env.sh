# For plain `luajit script.lua`:  . scripts/env.sh   (from the root of the tree)
LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;${LUA_PATH:-;}"
export LUA_PATH
