--[[
job_submit/lua of Moorings: turns the options of a job with --ipus into licenses, and refuses such licenses by hand.

Use in a site's own job_submit.lua (Lua 5.1 and later):

    package.path = "/etc/slurm/?.lua;" .. package.path
    local moorings = require("moorings_submit")

    function slurm_job_submit(desc, parts, uid)
        local rc = moorings.submit(desc, parts, uid)
        if rc ~= slurm.SUCCESS then return rc end
        -- the site's own rules
        return slurm.SUCCESS
    end

    function slurm_job_modify(desc, job, parts, uid)
        return moorings.modify(desc, job, parts, uid)
    end

`ipu` is tracked: accounting and limits count it. The twins `ipu_k` count devices in free blocks of at least k, so that
Slurm itself keeps a job PENDING (Licenses) until its partition can be formed. The options are recorded in
AdminComment, because only an operator can change it: the agent trusts nothing else.

slurmctld holds its locks while this runs: this script starts no command, and a plain job costs a few table look-ups.
No error leaves it: a bug of ours may refuse a job with --ipus, never another.
--]]

local M = {}

local OPTION = "^_SLURM_SPANK_OPTION_moorings_([%w_]+)=(.*)$"
local RECORD = "moorings:"
local NUMBER_MAX = 65536
local UNSET = 65533 -- NO_VAL, NO_VAL16 and INFINITE are all above it, and no job has as many tasks on a node

local folder = (debug.getinfo(1, "S").source:match("^@(.*/)") or "./")
local limits = { max = 256 } -- until moorings_limits.lua is read

-- The limits in moorings_limits.lua, read at each use: slurmctld would not notice a change of that file.
local function load_limits()
    local chunk = loadfile(folder .. "moorings_limits.lua")
    local good, found = pcall(chunk or error)
    if good and type(found) == "table" and type(found.max) == "number" then
        limits = found
    end
    return limits
end

local function count(text)
    if type(text) ~= "string" or not text:match("^%d%d?%d?%d?%d?$") then return nil end
    local number = tonumber(text, 10)
    if number < 1 or number > NUMBER_MAX then return nil end
    return number
end

local function is_power_of_two(number)
    while number > 1 do
        if number % 2 ~= 0 then return false end
        number = number / 2
    end
    return number == 1
end

local function sizes_allowed(bounds)
    local sizes = {}
    if type(bounds.sizes) == "table" then
        for _, size in ipairs(bounds.sizes) do sizes[#sizes + 1] = size end
        return sizes
    end
    local size = 1
    while size <= bounds.max do
        sizes[#sizes + 1] = size
        size = size * 2
    end
    return sizes
end

-- Return the options of the plugin as text: {ipus = "4", num_replicas = "8"}; nil: there are none.
local function options_of(desc)
    local n = desc.spank_job_env_size
    if not n or n == 0 or n > UNSET then return nil end
    local found
    for i = 0, n - 1 do
        local name, value = (desc.spank_job_env[i] or ""):match(OPTION)
        if name then
            found = found or {}
            found[name:gsub("-", "_")] = value
        end
    end
    return found
end

-- Whether only this file may write a license of that name: ipu, ipu_16, moorings_gate, also ipu@server.
local function is_ours(license)
    local name = license:lower():gsub("^[%s(]+", ""):match("^[^:=@*%s]*") or ""
    return name == "ipu" or name:match("^ipu_%d+$") ~= nil or name:match("^moorings") ~= nil
end

local function first_of_ours(licenses)
    for license in (licenses or ""):gmatch("[^,;|&]+") do
        if is_ours(license) then return license end
    end
    return nil
end

-- Newer releases accept licenses as trackable resources, too.
local function tres_of_ours(desc)
    for _, field in ipairs({ "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }) do
        for resource in (desc[field] or ""):gmatch("[^,;]+") do
            local license = resource:match("^%s*licenses?[/:](.*)$")
            if license and is_ours(license) then return license end
        end
    end
    return nil
end

local function set_number(value)
    return type(value) == "number" and value >= 1 and value <= UNSET
end

-- Return the number of GCDs: --ntasks, else the number of tasks that Slurm itself would start.
local function tasks_of(desc)
    if set_number(desc.num_tasks) then return desc.num_tasks end
    local nodes = set_number(desc.min_nodes) and desc.min_nodes or 1
    local per_node = set_number(desc.ntasks_per_node) and desc.ntasks_per_node or 1
    return nodes * per_node
end

-- Return ipu:4,ipu_1:4,ipu_2:4,ipu_4:4: s of each twin up to s.
local function licenses_for(ipus)
    local names = { "ipu:" .. ipus }
    local twin = 1
    while twin <= ipus do
        names[#names + 1] = ("ipu_%d:%d"):format(twin, ipus)
        twin = twin * 2
    end
    return table.concat(names, ",")
end

local function make_nonce()
    local file = assert(io.open("/dev/urandom", "rb"))
    file:setvbuf("no") -- eight bytes, not a page
    local noise = file:read(8)
    file:close()
    assert(noise and #noise == 8, "/dev/urandom gives too little")
    return (noise:gsub(".", function(byte) return ("%02x"):format(byte:byte()) end))
end

-- Whether the job may be requeued: by its own option, else by JobRequeue in slurm.conf (from the limits).
local function may_requeue(desc, bounds)
    if type(desc.requeue) == "number" and desc.requeue <= UNSET then return desc.requeue ~= 0 end
    return bounds.requeue ~= false
end

-- The signals that scancel knows and a program can catch; moorings_spank.c has the same list.
local SIGNALS = "HUP INT QUIT ABRT ALRM TERM USR1 USR2 URG CONT TSTP TTIN TTOU XCPU"

-- Return the signal of --ipu-preemptible, in the form of --signal: USR1 for the steps, B:USR1 for the batch script.
local function signal_of(text)
    if text == "" or text == "(null)" then return "USR1" end
    local name = text:match("^B:(.*)$") or text
    for known in SIGNALS:gmatch("%S+") do
        if name == known then return text end
    end
    return nil
end

-- Return why a job cannot be asked to yield, as a sentence; nil: it can.
local function wrong_preemptible(text, desc, bounds)
    if not signal_of(text) then
        return ("--ipu-preemptible=%s: say which signal warns its steps (USR1), or its batch script (B:USR1); one of %s")
            :format(text:sub(1, 40), SIGNALS)
    end
    if not desc.script then
        return "--ipu-preemptible: only a batch job can make room and go on later; submit it with sbatch"
    end
    if not may_requeue(desc, bounds) then
        return "--ipu-preemptible: a job that makes room is put back into the queue, so it needs --requeue"
    end
    return nil
end

-- Pass --no-requeue to the plugin, because RequeueExit of 22.05 overrides it. Only a batch job has an environment here.
local function mark_no_requeue(desc)
    if desc.environment then desc.environment["MOORINGS_NO_REQUEUE"] = "1" end
end

-- Return the error in a job's options, as a sentence with the allowed values; nil: none.
local function wrong(ipus, tasks, replicas, options, desc, bounds)
    local sizes = table.concat(sizes_allowed(bounds), ", ")
    local named = {}
    for _, size in ipairs(sizes_allowed(bounds)) do named[size] = true end
    if not ipus or not is_power_of_two(ipus) or ipus > bounds.max or not named[ipus] then
        return ("--ipus=%s: the number of IPUs must be one of %s"):format(options.ipus:sub(1, 40), sizes)
    end
    if desc.het_job_offset and desc.het_job_offset < UNSET then
        return "--ipus: a heterogeneous job cannot have IPUs; submit the part that needs them as a job of its own"
    end
    if ipus % tasks ~= 0 then
        return ("--ipus=%d with %d tasks: each task has its own GCD, so --ntasks must be a power of two from 1 to %d")
            :format(ipus, tasks, ipus)
    end
    if bounds.domain and ipus > bounds.domain and tasks < ipus / bounds.domain then
        return ("--ipus=%d with %d tasks: an IPU-Link domain has %d IPUs and a GCD lies in one, so --ntasks must be %d or more")
            :format(ipus, tasks, bounds.domain, ipus / bounds.domain)
    end
    if not replicas or replicas % tasks ~= 0 or (ipus / tasks) % (replicas / tasks) ~= 0 then
        return ("--num-replicas=%s: replicas of the whole job must be a multiple of its %d tasks that divides its %d IPUs")
            :format((options.num_replicas or ""):sub(1, 40), tasks, ipus)
    end
    return nil
end

-- Return a constraint with our feature added; nil and a sentence if that is not possible. Slurm reads & and | from left to
-- right, also with our addition at the end (measured on 22.05, 24.11 and 26.05): a|b&moorings is (a|b)&moorings, and
-- [a|b]&moorings is ([a|b])&moorings. With counts of nodes it fails: 22.05 gives a*2&moorings nodes without the feature,
-- later releases refuse it.
local function with_feature(constraint, feature)
    if not constraint or constraint == "" then return feature end
    if constraint == feature or constraint:sub(-#feature - 1) == "&" .. feature then return constraint end
    if constraint:find("*", 1, true) then
        return nil, ("the constraint '%s': nodes cannot be counted (*) beside IPUs; say --nodes=N, and features without counts")
            :format(constraint:sub(1, 80))
    end
    return constraint .. "&" .. feature
end

-- Add the feature of nodes with the plugin to the job's constraints; return a sentence if that is not possible.
local function keep_to_feature(desc, feature, constraint)
    local features, prefer, sentence
    if constraint then
        features, sentence = with_feature(constraint, feature)
        if not features then return sentence end
    end
    if desc.prefer and desc.prefer ~= "" then -- it replaces the constraint while there are such nodes
        prefer, sentence = with_feature(desc.prefer, feature)
        if not prefer then return sentence end
    end
    if features then desc.features = features end
    if prefer then desc.prefer = prefer end
    return nil
end

-- Return the refusal as a sentence; nil: accepted. Changes `desc` of a job with --ipus.
local function submit(desc)
    local license = first_of_ours(desc.licenses) or tres_of_ours(desc)
    if license then
        return ("the license '%s' cannot be asked for by hand: use --ipus=N"):format(license:sub(1, 40))
    end
    if (desc.admin_comment or ""):sub(1, #RECORD) == RECORD then
        return "an AdminComment that begins with 'moorings:' cannot be written by hand"
    end
    local options = options_of(desc)
    if not options then return nil end
    if not options.ipus then
        if options.ipu_preemptible then return "--ipu-preemptible needs --ipus=N" end
        return options.num_replicas and "--num-replicas needs --ipus=N" or nil
    end
    local bounds = load_limits()
    local ipus, tasks = count(options.ipus), tasks_of(desc)
    local replicas = tasks
    if options.num_replicas then replicas = count(options.num_replicas) end
    local sentence = wrong(ipus, tasks, replicas, options, desc, bounds)
    local preemptible = options.ipu_preemptible
    if not sentence and preemptible then sentence = wrong_preemptible(preemptible, desc, bounds) end
    if sentence then return sentence end
    local own = desc.licenses
    if own and own:find("|", 1, true) then -- 26.05: '|' means one or the other; a list with both '|' and ',' is refused
        return ("--ipus with the licenses '%s': one or the other ('|') cannot be had beside IPUs; ask for them with ','")
            :format(own:sub(1, 40))
    end
    if bounds.feature then
        sentence = keep_to_feature(desc, bounds.feature, desc.features or "")
        if sentence then return sentence end
    end
    if not may_requeue(desc, bounds) then mark_no_requeue(desc) end
    desc.licenses = (own and own ~= "" and own .. "," or "") .. licenses_for(ipus)
    desc.admin_comment = ("%s1 nonce=%s ipus=%d gcds=%d replicas=%d%s"):format(
        RECORD, make_nonce(), ipus, tasks, replicas, preemptible and " preemptible=" .. signal_of(preemptible) or "")
    return nil
end

local function is_admin(uid)
    if uid == 0 then return true end
    for _, admin in ipairs(load_limits().admins or {}) do
        if uid == admin then return true end
    end
    return false
end

local function is_of_ours(job)
    return (job.admin_comment or ""):sub(1, #RECORD) == RECORD
end

-- A changed constraint gets the feature, also from an admin. The mark of --no-requeue stays: a change has no
-- environment to set it in.
local function modify(desc, job, uid)
    local record, licenses, tasks = desc.admin_comment, desc.licenses, desc.num_tasks
    local changes_tasks = type(tasks) == "number" and tasks <= UNSET
    local feature = (desc.features or desc.prefer) and is_of_ours(job) and load_limits().feature
    local sentence = feature and keep_to_feature(desc, feature, desc.features)
    if sentence then return sentence end
    local stays = desc.requeue == 0 and (job.admin_comment or ""):match("^" .. RECORD .. ".* preemptible=") ~= nil
    if not record and not licenses and not changes_tasks and not stays and not tres_of_ours(desc) then return nil end
    if is_admin(uid) then return nil end
    if stays then
        return "a job with --ipu-preemptible must be one that may be requeued: cancel it, or leave requeue=1"
    end
    if is_of_ours(job) then
        return "the licenses, tasks and AdminComment of a job with --ipus cannot be changed: cancel it and submit it again"
    end
    if first_of_ours(licenses) or tres_of_ours(desc) or (record or ""):sub(1, #RECORD) == RECORD then
        return "IPUs cannot be added to a job: cancel it and submit it again with --ipus=N"
    end
    return nil
end

local function wants_ipus(desc)
    return options_of(desc) ~= nil
end

local function refuse(sentence, code)
    slurm.log_user("moorings: %s", sentence)
    return code or slurm.ERROR
end

-- Run `decide`. An error in it is our fault and refuses only jobs with IPUs. If not even that can be
-- determined, `closed` decides: a job without our licenses and record gets no IPUs, so submit accepts it.
local function answer(code, decide, concerns_us, closed, ...)
    local good, sentence = pcall(decide, ...)
    if good then
        return sentence and refuse(sentence, code) or slurm.SUCCESS
    end
    pcall(slurm.log_error, "moorings_submit: %s", tostring(sentence))
    local known, ours = pcall(concerns_us, ...)
    if (known and not ours) or not (known or closed) then return slurm.SUCCESS end
    return refuse("an error of its own, which slurmctld's log tells: jobs with --ipus are not taken now", code)
end

--- Return slurm.SUCCESS, or slurm.ERROR after a sentence to the user. For slurm_job_submit.
function M.submit(desc, _, _)
    return answer(slurm.ERROR, submit, wants_ipus, false, desc)
end

--- Return slurm.SUCCESS, or an error after a sentence to the user. For slurm_job_modify.
function M.modify(desc, job, _, uid)
    local function concerns_us() return is_of_ours(job) end
    -- scontrol of 22.05 does not show log_user's text: "Access/permission denied" tells more than "Unspecified error".
    return answer(slurm.ESLURM_ACCESS_DENIED or slurm.ERROR, function() return modify(desc, job, uid) end, concerns_us, true)
end

return M
