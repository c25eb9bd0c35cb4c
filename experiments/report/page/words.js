// The glossary, PyTorch's terms, and common claims against this run.

const WORDS = [
  ['rank', 'rank', 'w_rank'], ['bucket', 'bucket', 'w_bucket'], [null, 'chunk', 'w_chunk'], [null, 'round', 'w_round'],
  [null, 'push, pull', 'w_push'], [null, 'staleness', 'w_stale'], ['optimizer.step()', 'step', 'w_step'],
];

// PyTorch's names and psring's.
const PYTORCH = [
  ['DistributedDataParallel', '--strategy ring', 'p_ddp'], ['DataParallel', '--strategy dp', 'p_dp'],
      ['torch.distributed.rpc', '--strategy ps-sync, ps-async', 'p_rpc'],
  ['init_process_group(backend)', '--strategy gloo, nccl, mpi', 'p_backend'], ['world_size', '--workers', 'p_world'],
      ['bucket_cap_mb', '--bucket_mb', 'p_bucket'],
  ['no_sync()', '--accumulate K', 'p_no_sync'], ['bf16_compress_hook', '--wire bfloat16', 'p_wire'],
      ['dist.all_reduce(tensor)', 'psring bench', 'p_all_reduce'],
  ['get_ddp_logging_data()', 'ddp.jsonl', 'p_logging'],
];

function wordTable(heads, rows, id) {
  return make('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': heads.join(', ')},
      make('table', {class: 'words', id},
    make('thead', {}, make('tr', {}, ...heads.map((head) => make('th', {scope: 'col'}, head)))),
    make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((cell) => make('td', {}, cell)))))));
}

// Common claims, and what this run shows.
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

function drawWords(parent, run) {
  parent.append(wordTable([t('psring_says'), t('pytorch'), t('meaning')],
      WORDS.map(([theirs, ours, key]) => [ours, theirs || t('none_in_pytorch'), t(key)]), 'glossary'),
    make('h3', {}, t('pytorch_title')), wordTable([t('pytorch'), t('psring_says'), t('meaning')],
        PYTORCH.map(([theirs, ours, key]) => [theirs, ours, t(key)]), 'pytorch'),
    make('h3', {}, t('notes_title')), wordTable([t('notes_claim'), t('notes_run')], claimsOf(run), 'claims'));
}
