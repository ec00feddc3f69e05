--- Plants faults at random and asks whether a test notices: a factor or a sign in gradient rules, a barrier in CUDA kernels, a
-- header field's comparison in collectives, a check or a word of handshakes and sealed frames, a byte of a record. Works on a
-- copy of the tree, in build-mutants/.
--
--   build/luda scripts/mutants.lua [rules] [barriers] [headers] [seals] [records] [--count 10] [--seed N]
--
-- Prints the seed, a line for each fault, and "N killed, N survived"; exits 1 if one survived.

local WORK = "build-mutants"
local TREE, BUILD = WORK .. "/tree", WORK .. "/build"

--- Runs a shell command quietly; true if it succeeded.
local function run(command, ...)
  return os.execute(("( %s ) >%s/log 2>&1"):format(command:format(...), WORK)) == 0
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function write(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

local function line_of(text, position)
  local _, count = text:sub(1, position):gsub("\n", "")
  return count + 1
end

--- Places where `pattern` stands outside of preprocessor lines; each becomes `replacement`.
local function find_sites(path, text, pattern, replacement, sites)
  local from, to = text:find(pattern)
  while from do
    local start = text:sub(1, from):match(".*\n()") or 1
    if text:sub(start, start) ~= "#" then
      local new = text:sub(from, to):gsub(pattern, replacement)
      sites[#sites + 1] = { path = path, from = from, to = to, new = new, line = line_of(text, from),
        what = ("%s becomes %s"):format(text:sub(from, to), new) }
    end
    from, to = text:find(pattern, to + 1)
  end
end

local function run_spec(name, filters)
  return run("cd %s && LUDA_LIB=$OLDPWD/%s/libluda.so timeout 250 luajit /usr/bin/busted %s spec/%s.lua", TREE, BUILD, filters,
    name)
end

local function programs(names, environment)
  for _, name in ipairs(names) do
    if not run("%s timeout 90 %s/%s", environment or "", BUILD, name) then
      return name
    end
  end
end

local KINDS = {}

KINDS.rules = dofile("scripts/mutants/rules.lua")
KINDS.rules.killer = (function(killer)
  return function(site)
    return killer(run_spec, site)
  end
end)(KINDS.rules.killer)

KINDS.barriers = {
  files = { "kernels/cuda/team.cuh", "kernels/cuda/attention.cu", "kernels/cuda/attention.inc", "kernels/cuda/optim.cu" },
  sites = function(path, text, sites)
    find_sites(path, text, "__syncthreads%(%);", "/* dropped */", sites)
  end,
  build = "ninja -C %s cuda_test cuda_rows_test",
  killer = function()
    for _, order in ipairs { "forward", "random:1", "random:2", "reverse" } do
      local name = programs({ "spec/cuda_test", "spec/cuda_rows_test" }, "CUDAEMU_ORDER=" .. order)
      if name then
        return name .. " in order " .. order
      end
    end
  end,
}

KINDS.headers = {
  files = { "runtime/collective/agree.c" },
  sites = function(path, text, sites)
    find_sites(path, text, "a%->(%w+) == b%->%1", "true", sites)
    find_sites(path, text, "memcmp%(a%->shape, b%->shape, [^=]* == 0", "true", sites)
    find_sites(path, text, "%(uint32_t%)asked%->(%w+)", "0u", sites)
    find_sites(path, text, "%(uint64_t%)asked%->shape%[d%]", "0u", sites)
  end,
  build = "ninja -C %s collective_test collective_faults_test collective_gradient_test",
  killer = function()
    return programs { "spec/collective_test", "spec/collective_faults_test", "spec/collective_gradient_test" }
  end,
}

KINDS.seals = {
  files = { "runtime/collective/secret.c" },
  sites = function(path, text, sites)
    for _, check in ipairs { "frame%->kind != g%->next", "frame%->payload != expected", "!proves%(g, [^)]*%)",
      "options%->secret_bytes < LEAST", "h%->left == 0", "%(shared%)" } do
      find_sites(path, text, check, "(false && %0)", sites)
    end
    for _, step in ipairs { "luda__frame_write%(frame, g%->words%)", "memcpy%(g%->words [^;]*", "h%->count%+%+",
      "h%->left %-= bytes", "g%->next = LUDA_FRAME_COUNT", "sodium%.sodium_memzero%(g%->key[^;]*",
      "g%->words%[[^;]*" } do
      find_sites(path, text, step, "(void)0", sites)
    end
    find_sites(path, text, "%(uint8_t%)purpose", "0", sites)
    find_sites(path, text, "in%->key%) != 0", "in->key) > 0", sites)
    find_sites(path, text, "seal%->encrypt %?", "0 ?", sites)
  end,
  build = "ninja -C %s collective_secret_test collective_intruder_test collective_door_test",
  killer = function()
    return programs { "spec/collective_secret_test", "spec/collective_door_test", "spec/collective_intruder_test" }
  end,
}

local function prepare_tree()
  local copied = os.execute("mkdir -p " .. TREE .. " && git ls-files -z | tar --null -T - -cf - | tar -xf - -C " .. TREE)
  assert(copied == 0, "the tree cannot be copied")
  assert(run("cmake -S %s -B %s -G Ninja -DLUDA_CUDA=OFF -DLUDA_LEVELS=baseline -DLUDA_EMULATOR=ON && ninja -C %s luda_cdef",
    TREE, BUILD, BUILD), "the copy does not build; see " .. WORK .. "/log")
end

local function all_sites(kind)
  local sites = {}
  for _, path in ipairs(kind.files) do
    kind.sites(path, read(path), sites)
  end
  return sites
end

local function plant(kind, site)
  local original = read(site.path)
  local text = original:sub(1, site.from - 1) .. site.new .. original:sub(site.to + 1)
  write(TREE .. "/" .. site.path, kind.prepare and kind.prepare(text) or text)
  local built = run(kind.build, BUILD)
  local killer = built and kind.killer(site)
  write(TREE .. "/" .. site.path, original)
  return built, killer
end

local totals = { killed = 0, survived = 0 }

local function report(name, what, killer)
  totals[killer and "killed" or "survived"] = totals[killer and "killed" or "survived"] + 1
  print(("%-9s %s: %s"):format(name, what, killer and "killed by " .. killer or "SURVIVED"))
  io.flush()
end

local function mutate(name, count, random)
  local kind = KINDS[name]
  for _, path in ipairs(kind.files) do
    write(TREE .. "/" .. path, read(path)) -- newer than what a run that was killed may have built of a fault
  end
  assert(run(kind.build, BUILD) and not kind.killer(), "the tests of " .. name .. " fail without a fault; see " .. WORK .. "/log")
  local sites, done = all_sites(kind), 0
  while done < count and #sites > 0 do
    local site = table.remove(sites, random(#sites))
    local built, killer = plant(kind, site)
    if built then
      done = done + 1
      report(name, ("%s:%d %s"):format(site.path, site.line, site.what), killer)
    end
  end
  run(kind.build, BUILD)
end

--- One bit of one byte of a record, anywhere in the file.
local function mutate_records(count, random)
  local luda = require "luda"
  local path = WORK .. "/record.safetensors"
  luda.save(path, { weight = luda.randn(13, 7), steps = luda.tensor { 5LL }, mask = luda.ones(3, { dtype = "bool" }) },
    { note = "a record" })
  local original = read(path)
  for _ = 1, count do
    local position, bit_value = random(#original), 2 ^ (random(8) - 1)
    local byte = require("bit").bxor(original:byte(position), bit_value)
    write(path, original:sub(1, position - 1) .. string.char(byte) .. original:sub(position + 1))
    local loaded, problem = pcall(luda.load, path)
    report("records", ("byte %d of %d, bit value %d"):format(position, #original, bit_value),
      not loaded and "load: " .. problem.code)
  end
end

local function main()
  local chosen, options, i = {}, { count = 10, seed = os.time() }, 1
  while arg[i] do
    local option = arg[i]:match("^%-%-(%w+)$")
    if option then
      options[option] = assert(tonumber(arg[i + 1]), arg[i] .. " needs a number")
      i = i + 1
    else
      chosen[#chosen + 1] = arg[i]
    end
    i = i + 1
  end
  if #chosen == 0 then
    chosen = { "rules", "barriers", "headers", "seals", "records" }
  end
  print("seed " .. options.seed)
  math.randomseed(options.seed)
  os.execute("mkdir -p " .. WORK)
  if #chosen > 1 or chosen[1] ~= "records" then
    prepare_tree()
  end
  for _, name in ipairs(chosen) do
    if name == "records" then
      mutate_records(options.count, math.random)
    else
      mutate(name, options.count, math.random)
    end
  end
  print(("%d killed, %d survived"):format(totals.killed, totals.survived))
  return totals.survived == 0 and 0 or 1
end

os.exit(main())
