// The glossary and PyTorch's terms.

// PyTorch's names and psring's; trainer/pytorch.md has all.
const PYTORCH = [
  ['DistributedDataParallel', '--strategy ring', 'p_ddp'], ['DataParallel', '--strategy data-parallel', 'p_dp'],
  ['torch.distributed.rpc', '--strategy ps-sync, ps-async', 'p_rpc'], ['init_process_group(backend)', '--strategy gloo, nccl, mpi', 'p_backend'],
  ['bucket_cap_mb', '--bucket_mb', 'p_bucket'], ['torch.distributed.pipelining', '--pp P, --program', 'p_pipelining'], ['no_sync()', '--micro_batches K', 'p_no_sync'],
];

// Terms that only the page of a run with a pipeline explains.
const OF_PIPELINES = ['stage', 'micro-batch', 'bubble', 'p_pipelining'];

function drawWords(parent, run) {
  const shown = (word) => hasPipeline(run) || !OF_PIPELINES.includes(word);
  const table = (id, heads, rows) => scrollTable({class: 'words', id}, heads.join(', '), heads, rows);
  parent.append(table('glossary', [t('psring_says'), t('meaning')], DATA.glossary.filter(([word]) => shown(word)).map(([word, meaning]) => [rowHead(word), inLanguage(meaning)])),
    make('h4', {}, t('pytorch_title')), table('pytorch', [t('pytorch'), t('psring_says'), t('meaning')],
        PYTORCH.filter(([, , key]) => shown(key)).map(([theirs, ours, key]) => [rowHead(theirs), ours, t(key)])));
}
