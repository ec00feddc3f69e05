--- Requests to stop: all ranks end at one step, records make the run go on exactly, and who does not listen is killed.

local helper = require "spec.helper"
local runs = require "spec.runs"

--- Runs the script on 2 ranks, does `act` in shell once both are under way; what was printed and the launcher's status.
local function stopped_run(options, what, act)
  local place = helper.new_folder() .. "/rank"
  return runs.output(runs.SHELL .. ([[
    %s run -n 2 %s spec/work/run_stops.lua %s %s & launcher=$!
    await %s.0 %s.1
    %s
    wait $launcher]]):format(runs.program, options, what, place, place, place, (act:gsub("PLACE", place))))
end

local function same_step(text)
  local first, second = text:match("rank 0 stops at step (%d+)"), text:match("rank 1 stops at step (%d+)")
  assert.truthy(first, text)
  assert.equal(first, second, text)
end

describe("a request to stop", function()
  it("ends all ranks at one step, with status 0", function()
    local text, status = stopped_run("", "steps", "kill $launcher")
    assert.equal(0, status, text)
    same_step(text)
    assert.truthy(text:find("luda run: asked to stop; all ranks ended well", 1, true), text)
  end)

  it("to one rank is one to all", function()
    local text, status = stopped_run("--max-restarts 3", "steps", "kill $(cat PLACE.1)")
    assert.equal(0, status, text)
    same_step(text)
  end)

  it("reaches rank threads", function()
    local text, status = stopped_run("--threads", "steps", "kill $launcher")
    assert.equal(0, status, text)
    same_step(text)
  end)

  it("twice in a moment, as timeout sends it, is one", function()
    local text, status = stopped_run("", "saving", "kill $launcher; sleep 0.2; kill $launcher")
    assert.equal(0, status, text)
    assert.truthy(text:find("rank 0 has saved", 1, true) and text:find("rank 1 has saved", 1, true), text)
  end)

  it("kills ranks that do not listen after the grace, and starts none again", function()
    local text, status = stopped_run("--grace 0.3 --max-restarts 3", "deaf", "kill $launcher")
    assert.equal(137, status, text)
    assert.truthy(text:find("luda run: asked to stop; rank %d was killed by signal 9"), text)
    assert.is_nil(text:find("restart", 1, true), text)
  end)

  it("is an order the second time", function()
    local started = os.time()
    local text, status = stopped_run("--grace 100", "deaf", "kill $launcher; sleep 1.3; kill $launcher")
    assert.equal(137, status, text)
    assert.is_true(os.time() - started < 60)
  end)

  it("of a script that does not ask ends it", function()
    local text, status = stopped_run("", "children", "kill $launcher")
    assert.equal(143, status, text)
    assert.truthy(text:find("asked to stop; rank %d was killed by signal 15"), text)
  end)
end)

describe("Ctrl-Z", function()
  it("pauses the ranks with the launcher", function()
    if os.execute("command -v script > /dev/null") ~= 0 then
      return pending("there is no script(1) here, which makes terminals")
    end
    local place = helper.new_folder() .. "/rank"
    local text = runs.output(runs.SHELL .. ([[
      place=%s
      state() { awk '/^State/ { print $2 }' /proc/$1/status; }
      parent() { awk '/^PPid/ { print $2 }' /proc/$1/status; }
      mkfifo $place.keys
      script -qc "%s run -n 2 spec/work/run_stops.lua steps $place" /dev/null < $place.keys > $place.out 2>&1 & terminal=$!
      exec 9> $place.keys
      await $place.0 $place.1
      rank=$(cat $place.0); launcher=$(parent $(parent $rank))
      printf '\032' >&9
      for i in $(seq 500); do [ "$(state $launcher)$(state $rank)" = TT ] && echo paused && break; sleep 0.02; done
      kill -CONT $launcher
      for i in $(seq 500); do [ "$(state $rank)" != T ] && echo goes on && break; sleep 0.02; done
      kill $launcher
      for i in $(seq 500); do [ -e /proc/$launcher ] && [ "$(state $launcher)" != Z ] || break; sleep 0.02; done
      kill -9 $terminal 2> /dev/null
      echo "left $(state $rank 2> /dev/null)"]]):format(place, runs.program))
    assert.truthy(text:find("paused\ngoes on\nleft \n"), text)
  end)
end)

describe("training that was stopped", function()
  local SIZE = "--text CHANGELOG.md --steps 100 --batch 8 --context 16 --layers 1 --heads 2 --width 16 --sample 0 --warmup 2 "
    .. "--valid-every 1000 --every 1000"

  local function training(arguments, act)
    return runs.output(runs.SHELL .. ([[
      more() { for i in $(seq 1500); do [ "$(cat $1 2> /dev/null | wc -l)" -ge $2 ] && return; sleep 0.005; done; }
      %s run -n 2 examples/char_gpt.lua %s %s & launcher=$!
      %s
      wait $launcher]]):format(runs.program, SIZE, arguments, act or ""))
  end

  it("goes on exactly", function()
    local dir = helper.new_folder()
    local text, status = training(("--log %s/whole"):format(dir))
    assert.equal(0, status, text)
    local try, log, arguments = 0
    repeat -- on a busy machine a run may end before it is stopped
      try = try + 1
      log = ("%s/parts%d"):format(dir, try)
      arguments = ("--log %s --dir %s/records%d --resume"):format(log, dir, try)
      text, status = training(arguments, ("more %s 3; kill $launcher"):format(log))
    until text:find("saved and ended after step", 1, true) or try == 10
    assert.equal(0, status, text)
    assert.truthy(text:find("saved and ended after step", 1, true), text)
    text, status = training(arguments)
    assert.equal(0, status, text)
    assert.equal(helper.read(dir .. "/whole"), helper.read(log))
    assert.truthy(text:find("2 ranks, from step", 1, true), text)
  end)
end)
