// The glossary, PyTorch's terms, and common claims compared with this run.

// PyTorch's names and psring's.
const PYTORCH = [
  ['DistributedDataParallel', '--strategy ring', 'p_ddp'], ['DataParallel', '--strategy dp', 'p_dp'],
      ['torch.distributed.rpc', '--strategy ps-sync, ps-async', 'p_rpc'],
  ['init_process_group(backend)', '--strategy gloo, nccl, mpi', 'p_backend'], ['world_size', '--workers', 'p_world'],
      ['bucket_cap_mb', '--bucket_mb', 'p_bucket'],
  ['no_sync()', '--accumulate K', 'p_no_sync'], ['bf16_compress_hook', '--wire bfloat16', 'p_wire'],
      ['dist.all_reduce(tensor)', 'psring bench', 'p_all_reduce'],
  ['get_ddp_logging_data()', 'ddp.jsonl', 'p_logging'], ['optimizer.step()', 'step', 'p_step'],
];

// Common claims, and the result of this run.
function claimsOf(run) {
  const rows = rowsOf(run), list = (found, value) => found.map((row) => `${rowName(row)} ${value(row)}`).join(', ');
  const rings = rows.filter((row) => row.plain === 'ring' && row.payload_tx_bytes_per_worker > 0);
  const server = rows.filter((row) => row.server_payload_bytes > 0 && row.workers > 1).pop();
  const stale = rows.filter((row) => row.plain === 'ps-async' && isNumber(row.staleness_mean) && row.workers > 1);
  const latency = runWires(run).latency, most = d3.max(rings, (row) => row.workers);
  const duel = duelsOf(run).sort((a, b) => b.workers - a.workers)[0];
  const pair = asynchronousPair(run);
  const say = (key, text) => [t(key), t(`${key}_run`, text)];
  return [
    say('claim_constant', rings.length ? t('claim_constant_here',
        list(rings, (row) => `${megabytes(row.payload_tx_bytes_per_worker)} MB`), secondsText(2 * (most - 1) * latency), most)
        : ''),
    say('claim_bytes', server ? t('claim_bytes_here', megabytes(server.server_payload_bytes),
        megabytes(server.payload_tx_bytes_per_worker)) : ''),
    say('claim_slower', duel ? t('claim_slower_here', duel.workers, brief(duel.server), brief(duel.ring)) : ''),
    say('claim_async', pair ? t('claim_async_here', pair.row.workers, withThousands(pair.row.samples_per_s),
        withThousands(pair.waiting.samples_per_s)) : ''),
    say('claim_stale', stale.length ? t('claim_stale_here', list(stale, (row) => row.staleness_mean.toFixed(2))) : ''),
    say('claim_nccl', ''),
  ];
}

function drawWords(parent, run, glossary) {
  const table = (id, heads, rows) => scrollTable({class: 'words', id}, heads.join(', '), heads, rows);
  parent.append(table('glossary', [t('psring_says'), t('meaning')], glossary.map(([word, meaning]) => [word, inLanguage(meaning)])),
    make('h3', {}, t('pytorch_title')), table('pytorch', [t('pytorch'), t('psring_says'), t('meaning')],
        PYTORCH.map(([theirs, ours, key]) => [theirs, ours, t(key)])),
    make('h3', {}, t('notes_title')), table('claims', [t('notes_claim'), t('notes_run')], claimsOf(run)));
}
